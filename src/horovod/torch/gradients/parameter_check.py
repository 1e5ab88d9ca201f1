# SPDX-License-Identifier: Apache-2.0
"""Check that all ranks have equal parameters.

Ranks check with the first message of an optimizer's rounds, and again with the first message after hvd.join(). Each
rank adds a checksum of the parameters that it trains to this message, which is sent anyway. Only if the checksums
differ do the ranks exchange more, to find out which parameter differs and on which ranks. All ranks that received the
combined message take part.
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
_MOST_ASKED = 64  # limit on parameters whose ranks are looked up, because each costs a byte per rank
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
    """The first parameter, in the optimizer's order, that differs between ranks, and how many others differ."""

    name: str
    others: int
    ranks: tuple[int, int] | None = None  # two ranks that differ, known only on the rank that shows the warning

    def described(self, text: str, both: str = "") -> str:
        """Fill in one of this module's texts. `both` describes the two optimizers whose parameters have equal names."""
        one, other = self.ranks or (-1, -1)
        more = f" ({self.others} more differ.)" if self.others else ""
        return text.format(name=self.name, one=one, other=other, more=more, both=both)


class ParameterCheck:
    """Checksums of this rank's parameters, compared by name because ranks may order parameters differently."""

    def __init__(self, named: Sequence[tuple[str, Tensor | None]]) -> None:
        """Compute checksums of `named`, in the optimizer's order; None stands for a parameter that is not compared."""
        by_name = sorted((name, number) for number, (name, _) in enumerate(named))
        self._names = [name for name, _ in by_name]
        self._numbers = [number for _, number in by_name]
        checksums = _checksums([named[number][1] for number in self._numbers])
        self._said = [_NOTHING if it is None else with_complement(it) for it in checksums]

    def checksum(self) -> int:
        """Return one checksum of all parameters."""
        return zlib.crc32(b"".join(self._said))

    def find(self) -> Questions[Difference | None]:
        """Return the first parameter that differs, on all ranks; None if no parameter that is trained differs."""
        different, _ = yield from self._compare()
        return self._difference(different) if different else None

    def find_with_ranks(self, ranks: Sequence[int], rank: int) -> Questions[Difference | None]:
        """Return the first parameter that differs on the one rank that is to warn; None on others, or without any."""
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
    """Return 0 if this rank does not train the parameter.

    Otherwise return 1 if it has the maximum in the first byte that differs, else 2.
    """
    at = next(at for at in range(CHECKSUM_BYTES) if not is_same(heard[at::CHECKSUM_BYTES]))
    return 0 if mine == _NOTHING else 1 if mine[at] == heard[at] else 2


def _checksums(parameters: Sequence[Tensor | None]) -> list[int | None]:
    """Return one checksum per parameter; None if its bits cannot be read (another layout, a subclass that refuses)."""
    result: list[int | None] = [None] * len(parameters)
    by_device: dict[torch.device, list[tuple[int, Tensor]]] = {}
    with torch.no_grad():
        for number, parameter in enumerate(parameters):
            bits = None if parameter is None else _sum_of_bits(parameter)
            if bits is not None:
                by_device.setdefault(bits.device, []).append((number, bits))
        for sums in by_device.values():  # copies to the host once per device
            for (number, _), value in zip(sums, torch.stack([bits for _, bits in sums]).tolist(), strict=True):
                result[number] = zlib.crc32(value.to_bytes(8, "little", signed=True))
    return result


def _sum_of_bits(parameter: Tensor) -> Tensor | None:
    """Return the sum of a parameter's bits as integers, in one pass without a copy. A single difference changes it."""
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
