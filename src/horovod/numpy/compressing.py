# SPDX-License-Identifier: Apache-2.0
"""Allreduce of NumPy arrays with int8 compression, without residuals: values that leave a host are sent as 8 bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from horovod.common.arrays import Array
from horovod.common.calls import ALLTOALL, Call
from horovod.common.codecs import Codec, Int8Codec, OneBitCodec, TopKCodec
from horovod.common.compression_methods import CompressionMethod, Int8, OneBit, TopK
from horovod.common.context import default_context
from horovod.common.exchange_plan import Plan, plan_of
from horovod.common.group_contents import with_compression
from horovod.common.rules import Average
from horovod.common.supported_methods import method_in

Run: TypeAlias = Callable[[Call, Sequence[Array]], Any]

METHODS = (Int8,)  # methods that allreduce supports


def codec(method: CompressionMethod) -> Codec:
    """Return the codec of a compression method, which encodes arrays of float32 to bytes and decodes them.

    A codec keeps nothing: residuals belong to the caller.

    Args:
        method: hvd.Compression.int8(), onebit() or topk().

    Returns:
        An object with the methods encode(), decode(), decode_sum() and wire_bytes().

    Raises:
        TypeError: The argument is no compression method, or it is a class instead of an instance.
        ValueError: The method has no codec.

    Example:
        >>> codec = hvd.codec(hvd.Compression.int8())
        >>> codec.decode(codec.encode(np.ones(2, np.float32)), 2).tolist()  # on 2 ranks: [1.0, 1.0]
    """
    checked = method_in(method, (Int8, OneBit, TopK), "hvd.codec")
    if isinstance(checked, Int8):
        return Int8Codec(checked.block)
    if isinstance(checked, OneBit):
        return OneBitCodec()
    if isinstance(checked, TopK):
        return TopKCodec(checked.ratio)
    raise TypeError(f"hvd.codec needs a method such as hvd.Compression.int8(), not {method!r}")


@dataclass(frozen=True)
class Exchange:
    """One compressed allreduce.

    Attributes:
        method: The compression method.
        call: The allreduce as it would be without compression.
        run: Function that runs a call and returns its result.
    """

    method: CompressionMethod
    call: Call
    run: Run

    def reduce(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the reduced arrays.

        First reduce all uncompressed arrays as one group. Its description lets ranks compare their methods.
        """
        hosts, me = self._hosts()
        is_dense = len(hosts) == 1 or (self.method.scope == "host" and len(set(hosts)) == 1)
        chosen = [] if is_dense else [place for place, array in enumerate(arrays) if self._compresses(array)]
        rest = [place for place in range(len(arrays)) if place not in set(chosen)]
        contents = with_compression("", self.method.describe(), chosen)
        group = replace(self.call, grouped=True, contents=contents)
        reduced = self.run(group, [arrays[place] for place in rest] or [np.zeros(0, np.float32)])
        result = list(arrays)
        for place, array in zip(rest, reduced, strict=False):
            result[place] = array
        if chosen:
            own = hosts if self.method.scope == "host" else [str(rank) for rank in range(len(hosts))]
            for place, array in zip(chosen, self._compressed([arrays[it] for it in chosen], own, me), strict=True):
                result[place] = array
        return result

    def _compresses(self, array: Array) -> bool:
        return array.dtype.kind == "f" and array.size > 0 and self.method.compresses(self.call.name or "", array.nbytes)

    def _hosts(self) -> tuple[list[str], int]:
        member = default_context.membership_of(self.call.process_set)
        return [default_context.hosts[rank] for rank in member.ranks], member.index

    def _compressed(self, arrays: Sequence[Array], hosts: Sequence[str], me: int) -> list[Array]:
        flat = np.concatenate([array.ravel() for array in arrays]).astype(np.float32, copy=False)
        if self.call.prescale != 1.0:
            flat = flat * np.float32(self.call.prescale)
        coder = codec(self.method)
        plan = plan_of(hosts, me, flat.size, coder.wire_bytes)
        total = self._exchanged(flat, plan, coder)
        factor = self.call.postscale / (len(hosts) if self.call.op == Average else 1)
        total *= np.float32(factor)
        parts = np.split(total, np.cumsum([array.size for array in arrays])[:-1])
        return [part.reshape(array.shape).astype(array.dtype) for part, array in zip(parts, arrays, strict=True)]

    def _exchanged(self, flat: Array, plan: Plan, coder: Codec) -> Array:
        share = self._summed_here(flat, plan) if plan.largest > 1 else flat
        bounds = list(zip(plan.cuts[:-1], plan.cuts[1:], strict=True))
        messages = [coder.encode(share[start:end]) for start, end in bounds]
        got = self._alltoall(np.concatenate(messages), plan.chunk_splits, "chunks")
        chunk = int(plan.chunk)
        total = coder.decode_sum(list(got.reshape(plan.hosts, -1)), chunk) if chunk else np.zeros(0, np.float32)
        message = coder.encode(total)
        replies = self._alltoall(np.tile(message, np.count_nonzero(plan.sum_splits)), plan.sum_splits, "sums")
        result, at = np.empty(int(plan.share), np.float32), 0
        for start, end in bounds:
            size = coder.wire_bytes(int(end - start))
            result[start:end] = coder.decode(replies[at : at + size], int(end - start))
            at += size
        return self._alltoall(np.tile(result, plan.here), plan.gather_splits, "gather") if plan.largest > 1 else result

    def _summed_here(self, flat: Array, plan: Plan) -> Array:
        parts = self._alltoall(flat, plan.reduce_splits, "reduce").reshape(int(plan.here), int(plan.share))
        total: Array = parts[0].copy()
        for part in parts[1:]:
            total += part
        return total

    def _alltoall(self, array: Array, splits: Array, stage: str) -> Array:
        name = f"{self.call.name}.{stage}" if self.call.name else None
        received: Array = self.run(Call(ALLTOALL, self.call.process_set, name, splits=splits), [array])[0]
        return received
