# SPDX-License-Identifier: Apache-2.0
"""Allgathers and alltoalls on the stand-in for a device, whose result sizes are known only after the negotiation."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from gpu import Gpu, Tensor, world
from numpy.typing import NDArray

import horovod.numpy as hvd
from horovod._engine import EngineCall, TensorLocation
from horovod.common.calls import ALLGATHER, ALLTOALL
from horovod.common.dtypes import ID_BY_NAME

_numbers = itertools.count()


class Exchange:
    """One call, whose result the engine or the caller allocates."""

    def __init__(
        self, gpu: Gpu, kind: int, arrays: Sequence[NDArray[Any]], wanted: Sequence[NDArray[Any]], stream: int,
        splits: Sequence[int] = (), given: bool = False,
    ) -> None:  # fmt: skip
        self._gpu, self._stream, self._wanted = gpu, stream, wanted
        self._inputs = [Tensor(gpu, array, index % 3) for index, array in enumerate(arrays)]
        self._outputs = [Tensor(gpu, np.zeros_like(array)) for array in wanted]
        self._given = given
        targets = [it.address if given and it.nbytes else 0 for it in self._outputs]
        name = f"exchange.{next(_numbers)}"
        call = EngineCall(kind)
        tensors = [
            TensorLocation(ID_BY_NAME[like.dtype.name], like.shape, it.address, to, device=gpu.ordinal, stream=stream)
            for like, it, to in zip(arrays, self._inputs, targets, strict=True)
        ]
        if len(arrays) > 1:
            names = [f"{name}.{index}" for index in range(len(arrays))]
            self._handle = world().submit_group(0, name, names, call, tensors)
        else:
            self._handle = world().submit(0, name, call, tensors[0], splits)

    def check(self, received: Sequence[int] | None = None) -> None:
        world().wait(self._handle)
        if received is not None:
            assert world().received_splits(self._handle, len(received)) == list(received)
        for index, output in enumerate(self._outputs):
            assert world().output_rows(self._handle, index) == len(self._wanted[index])
            if not self._given:
                world().copy_output(self._handle, index, output.address, self._stream)
        world().let_wait(self._gpu.ordinal, self._stream)
        world().release(self._handle)
        self._gpu.synchronize(self._stream)
        for output, wanted in zip(self._outputs, self._wanted, strict=True):
            np.testing.assert_array_equal(output.array, wanted)
        for tensor in [*self._inputs, *self._outputs]:
            tensor.free()


def rows(name: str, count: int, width: int, of_rank: int, seed: int) -> NDArray[Any]:
    values = np.random.default_rng(1000 * seed + of_rank).integers(0, 100, (count, width))
    return values.astype(name)


def check_allgathers(gpu: Gpu, slot_bytes: int) -> None:
    """Check allgathers of one or several tensors, small and large, with different numbers of rows on the ranks."""
    ranks, me, stream = range(hvd.size()), hvd.rank(), gpu.stream()
    large = slot_bytes // 4
    runs = []
    for seed, (name, width, more) in enumerate(
        [("float32", 3, 0), ("uint8", 1, 1), ("int16", 5, large), ("bool", 1, 0)]
    ):
        for given in (False, True):
            parts = [rows(name, more * (rank % 2) + 2 * rank, width, rank, seed) for rank in ranks]
            runs.append(Exchange(gpu, ALLGATHER, [parts[me]], [np.concatenate(parts)], stream, given=given))
    for given in (False, True):
        groups = [[rows("int32", rank + k, 7, rank, k) for rank in ranks] for k in range(4)]
        whole = [np.concatenate(parts) for parts in groups]
        runs.append(Exchange(gpu, ALLGATHER, [parts[me] for parts in groups], whole, stream, given=given))
    for run in runs:
        run.check()
    gpu.destroy(stream)


def check_alltoalls(gpu: Gpu, slot_bytes: int) -> None:
    """Check alltoalls in which each pair of ranks exchanges its own number of rows, which may be zero."""
    ranks, me, stream = range(hvd.size()), hvd.rank(), gpu.stream()
    for seed, most in enumerate([3, 40, slot_bytes // 8]):
        for given in (False, True):
            splits = [[(3 * of + 5 * to + seed) % (most + 1) for to in ranks] for of in ranks]
            sent = [rows("int16", sum(splits[of]) + 1, 3, of, seed) for of in ranks]  # the last row is not sent
            begins = [np.cumsum([0, *splits[of]]) for of in ranks]
            wanted = np.concatenate([sent[of][begins[of][me] : begins[of][me] + splits[of][me]] for of in ranks])
            run = Exchange(gpu, ALLTOALL, [sent[me]], [wanted], stream, splits[me], given)
            run.check([splits[of][me] for of in ranks])
    gpu.destroy(stream)


def check_exchanges(gpu: Gpu, slot_bytes: int) -> None:
    check_allgathers(gpu, slot_bytes)
    check_alltoalls(gpu, slot_bytes)
