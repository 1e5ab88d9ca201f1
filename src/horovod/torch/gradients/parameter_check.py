# SPDX-License-Identifier: Apache-2.0
"""Do all ranks begin with the same parameters? Asked once, with the first message of an optimizer's rounds.

Each rank adds a checksum of what it trains to that message, which is sent anyway. Only if they differ do the ranks
exchange more, to find out which parameter it is and on which ranks; whoever heard that they differ takes part.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import torch

from horovod.torch.gradients.rounds import CHECKSUM_BYTES, is_same, with_complement
from horovod.torch.layout import in_memory_order, is_dense

Tensor = torch.Tensor
Exchange = Callable[[bytes], bytes]  # the messages of all ranks, combined by Max; zeros say nothing

_SAID = CHECKSUM_BYTES * 2
_NOTHING = bytes(_SAID)
_MOST_ASKED = 64  # of many that differ, to find the ranks; a byte for each of them and each rank
_TEXT = (
    "Parameter {name!r} differs between ranks {one} and {other}: call hvd.broadcast_parameters(model.state_dict(), "
    "root_rank=0) before training, or set HOROVOD_CHECK_PARAMETERS=0 if it is meant to differ."
)


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

    def find_difference(self, ranks: Sequence[int], rank: int, exchange: Exchange) -> str | None:
        """What to warn of, on the one rank that is to do so; None on the others, and if no trained one differs."""
        heard = exchange(b"".join(self._said))
        parts = [heard[start : start + _SAID] for start in range(0, len(heard), _SAID)]
        different = [number for number, part in enumerate(parts) if part != _NOTHING and not is_same(part)]
        if not different:
            return None
        asked = different[:_MOST_ASKED]
        mine = [_side(self._said[number], parts[number]) for number in asked]
        sides = exchange(b"".join(bytes(it if member == rank else 0 for it in mine) for member in ranks))
        by_rank = {
            it: sides[at : at + len(asked)] for it, at in zip(ranks, range(0, len(sides), len(asked)), strict=True)
        }
        if rank != next(it for it in ranks if any(by_rank[it])):
            return None
        shown = min(range(len(asked)), key=lambda it: self._numbers[asked[it]])
        first_of = {by_rank[it][shown]: it for it in reversed(ranks) if by_rank[it][shown]}
        one, other = sorted(first_of.values())
        more = f" ({len(different) - 1} more differ.)" if len(different) > 1 else ""
        return _TEXT.format(name=self._names[asked[shown]], one=one, other=other) + more


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
    bits = parameter.detach()
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
