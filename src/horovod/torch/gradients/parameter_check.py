# SPDX-License-Identifier: Apache-2.0
"""Do all ranks have the same parameters?

Asked with the first message of an optimizer's rounds, and once more with the first one after hvd.join(). Each rank adds
a checksum of what it trains to that message, which is sent anyway. Only if they differ do the ranks exchange more, to
find out which parameter it is and on which ranks. All ranks that received the answer take part.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import torch

from horovod.torch.gradients.conversations import Questions
from horovod.torch.gradients.rounds import CHECKSUM_BYTES, is_same, with_complement
from horovod.torch.layout import in_memory_order, is_dense
from horovod.torch.lazy_bits import resolve

Tensor = torch.Tensor

_SAID = CHECKSUM_BYTES * 2
_NOTHING = bytes(_SAID)
_MOST_ASKED = 64  # of many that differ, to find the ranks; a byte for each of them and each rank
AT_FIRST = (
    "Parameter {name!r} differs between ranks {one} and {other}: call hvd.broadcast_parameters(model.state_dict(), "
    "root_rank=0) before training, or set HOROVOD_CHECK_PARAMETERS=0 if it is meant to differ.{more}"
)
AFTER_JOIN = (
    "Parameter {name!r} differs between ranks {one} and {other} since hvd.join(): a rank that has joined makes no "
    "steps while others still train. Let all ranks take over from the rank that joined last: last = hvd.join(), then "
    "hvd.broadcast_parameters(model.state_dict(), root_rank=last), which includes buffers, and "
    "hvd.broadcast_optimizer_state(optimizer, root_rank=last). Set HOROVOD_CHECK_PARAMETERS=0 if it is meant to "
    "differ.{more}"
)
OF_TWINS = (
    "Parameter {name!r} differs between ranks, and its name does not tell whose it is: {both}. Either ranks have begun "
    "to use these in another order, and would average gradients of different models. Then give parameters names of "
    "their own: named_parameters=[('encoder.' + name, it) for name, it in encoder.named_parameters()]. Or the models "
    "do not begin alike: call hvd.broadcast_parameters(model.state_dict(), root_rank=0) for each model before "
    "training. Set HOROVOD_CHECK_PARAMETERS=0 if they are meant to differ.{more}"
)


class Difference(NamedTuple):
    """A parameter that differs, the first one in the optimizer's order, and how many others do."""

    name: str
    others: int
    ranks: tuple[int, int] | None = None  # two that have different ones, on the one rank that is to warn

    def described(self, text: str, both: str = "") -> str:
        """Return one of this module's texts about it. `both`: the optimizers whose parameters have the same names."""
        one, other = self.ranks or (-1, -1)
        more = f" ({self.others} more differ.)" if self.others else ""
        return text.format(name=self.name, one=one, other=other, more=more, both=both)


class ParameterCheck:
    """What this rank has to say about its parameters. Ranks may have them in different orders: names decide."""

    def __init__(self, named: Sequence[tuple[str, Tensor | None]]) -> None:
        """In the optimizer's order; None for what is not trained here, or not to be looked at."""
        by_name = sorted((name, number) for number, (name, _) in enumerate(named))
        self._names = [name for name, _ in by_name]
        self._numbers = [number for _, number in by_name]
        checksums = _checksums([named[number][1] for number in self._numbers])
        self._said = [_NOTHING if it is None else with_complement(it) for it in checksums]

    def checksum(self) -> int:
        """Of all of them together."""
        return zlib.crc32(b"".join(self._said))

    def find(self) -> Questions[Difference | None]:
        """Find the first parameter that differs, with the same result on all ranks; None if no trained one does."""
        different, _ = yield from self._compare()
        return self._difference(different) if different else None

    def find_with_ranks(self, ranks: Sequence[int], rank: int) -> Questions[Difference | None]:
        """Find it on the one rank that is to warn; None on the others, and if no trained one differs."""
        different, parts = yield from self._compare()
        if not different:
            return None
        asked = different[:_MOST_ASKED]
        mine = [_side(self._said[number], parts[number]) for number in asked]
        sides = yield b"".join(bytes(it if member == rank else 0 for it in mine) for member in ranks)
        by_rank = {
            it: sides[at : at + len(asked)] for it, at in zip(ranks, range(0, len(sides), len(asked)), strict=True)
        }
        if rank != next(it for it in ranks if any(by_rank[it])):
            return None
        shown = min(range(len(asked)), key=lambda it: self._numbers[asked[it]])
        first_of = {by_rank[it][shown]: it for it in reversed(ranks) if by_rank[it][shown]}
        one, other = sorted(first_of.values())
        return Difference(self._names[asked[shown]], len(different) - 1, (one, other))

    def _compare(self) -> Questions[tuple[list[int], list[bytes]]]:
        heard = yield b"".join(self._said)
        parts = [heard[start : start + _SAID] for start in range(0, len(heard), _SAID)]
        return [number for number, part in enumerate(parts) if part != _NOTHING and not is_same(part)], parts

    def _difference(self, different: Sequence[int]) -> Difference:
        shown = min(different, key=lambda it: self._numbers[it])
        return Difference(self._names[shown], len(different) - 1)


def _side(mine: bytes, heard: bytes) -> int:
    """Whoever has the greatest value in the first byte that differs is on one side, all others are on the other."""
    at = next(at for at in range(CHECKSUM_BYTES) if not is_same(heard[at::CHECKSUM_BYTES]))
    return 0 if mine == _NOTHING else 1 if mine[at] == heard[at] else 2


def _checksums(parameters: Sequence[Tensor | None]) -> list[int | None]:
    """One number for each; None for what cannot be read as bits (another layout, a subclass that refuses)."""
    result: list[int | None] = [None] * len(parameters)
    by_device: dict[torch.device, list[tuple[int, Tensor]]] = {}
    with torch.no_grad():
        for number, parameter in enumerate(parameters):
            bits = None if parameter is None else _sum_of_bits(parameter)
            if bits is not None:
                by_device.setdefault(bits.device, []).append((number, bits))
        for sums in by_device.values():  # so that each device is waited for once
            for (number, _), value in zip(sums, torch.stack([bits for _, bits in sums]).tolist(), strict=True):
                result[number] = zlib.crc32(value.to_bytes(8, "little", signed=True))
    return result


def _sum_of_bits(parameter: Tensor) -> Tensor | None:
    """The sum of a parameter's bits as integers, in which any one difference shows: one pass, without a copy."""
    if type(parameter.data) is not Tensor or parameter.layout is not torch.strided:
        return None
    bits = resolve(parameter.detach())
    if bits.is_complex():
        bits = torch.view_as_real(bits)
    wide = {4: torch.int32, 8: torch.int64}.get(bits.element_size())
    offset = bits.storage_offset() * bits.element_size()
    if wide is None and is_dense(bits) and not bits.nbytes % 4 and not offset % 4:
        bits, wide = in_memory_order(bits).reshape(-1), torch.int32
    if wide is None:
        narrow = torch.int8 if bits.element_size() == 1 else torch.int16
        return bits.view(narrow).sum(dtype=torch.int64)
    return bits.view(wide).sum(dtype=wide).to(torch.int64)
