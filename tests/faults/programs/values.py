# SPDX-License-Identifier: Apache-2.0
"""Send unusual numbers, shapes, layouts and types through every operation. After refusals, ranks must stay in step."""

import numpy as np
import pytest
from faultkit.reports import report

import horovod.numpy as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
ODD = {
    np.float16: np.array([0x7E01, 0x7D55, 0x7C00, 0xFC00, 0x8000, 0x0001], np.uint16),
    np.float32: np.array([0x7FC00001, 0x7FA00055, 0x7F800000, 0xFF800000, 0x80000000, 1], np.uint32),
    np.float64: np.array([0x7FF8 << 48 | 1, 0x7FF4 << 48 | 5, 0x7FF0 << 48, 0xFFF0 << 48, 1 << 63, 1], np.uint64),
}
REDUCTIONS = (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product)


def same_bits(found: np.ndarray, bits: np.ndarray) -> None:
    assert (found.view(bits.dtype) == bits).all(), (found, bits)


def refused(call, *texts: str) -> None:
    with pytest.raises(ValueError, match="|".join(texts)):
        call()


def moved_bits_are_kept() -> None:
    """Check quiet and signalling NaNs with their payload, infinities, negative zero and subnormals."""
    for dtype, bits in ODD.items():
        odd = bits.view(dtype)
        same_bits(hvd.broadcast(odd if rank == 1 else np.zeros_like(odd), 1), bits)
        same_bits(hvd.allgather(odd), np.tile(bits, size))
        same_bits(hvd.alltoall(np.tile(odd, size), splits=[len(odd)] * size)[0], np.tile(bits, size))
        if rank == 0:
            hvd.send(odd, 1)
        elif rank == 1:
            target = np.zeros_like(odd)
            received = hvd.recv(target, 0)
            same_bits(target if received is None else received, bits)


def not_a_number_is_reduced_everywhere() -> None:
    for dtype in ODD:
        rows = np.ones((size * 3, 5), dtype)
        if rank == 0:
            rows[::3] = np.nan
        for op in (hvd.Sum, hvd.Average):
            with np.errstate(invalid="ignore"):
                result = hvd.reducescatter(rows, op=op)
            assert np.isnan(result[0]).all(), result
            assert not np.isnan(result[1:]).any(), result
        grouped = hvd.grouped_allreduce([rows.ravel(), np.ones(4, dtype)], op=hvd.Sum)
        assert np.isnan(grouped[0].astype("f8")).sum() == size * 5
        assert (grouped[1] == size).all()
        adasum = hvd.allreduce(np.array([np.nan if rank == 0 else 1.0, 1.0], dtype), op=hvd.Adasum)
        assert np.isnan(adasum[0]), adasum


def infinities_cancel_to_not_a_number() -> None:
    for dtype in ODD:
        array = np.full(50, np.inf if rank % 2 else -np.inf, dtype)
        assert np.isnan(hvd.allreduce(array, op=hvd.Sum)).all()
        assert (hvd.allreduce(array, op=hvd.Min) == -np.inf).all()
        assert (hvd.allreduce(array, op=hvd.Max) == np.inf).all()
        assert (np.abs(hvd.allreduce(array, op=hvd.Product)) == np.inf).all()


def nothing_at_all() -> None:
    for shape in ((0,), (0, 3), (3, 0), (2, 0, 4)):
        empty = np.zeros(shape, np.float32)
        for op in REDUCTIONS:
            assert hvd.allreduce(empty, op=op).shape == shape
        assert hvd.allreduce(empty, op=hvd.Adasum).shape == shape
        assert hvd.broadcast(empty, 0).shape == shape
        assert hvd.allgather(empty).shape == (shape[0] * size, *shape[1:])
        assert hvd.alltoall(empty, splits=[0] * size)[0].shape == (0, *shape[1:])
        assert hvd.grouped_allreduce([empty, np.ones(2)], op=hvd.Sum)[1].tolist() == [size] * 2
    assert hvd.reducescatter(np.zeros((0, 3))).shape == (0, 3)
    assert hvd.reducescatter(np.zeros((size, 0))).shape == (1, 0)


def scalars() -> None:
    for op in REDUCTIONS:
        result = hvd.allreduce(np.array(1, np.int64), op=op)
        assert np.shape(result) == (), result
    assert hvd.allreduce(np.array(2.0), op=hvd.Adasum) == 2.0
    assert np.shape(hvd.broadcast(np.array(float(rank)), 1)) == ()
    assert hvd.broadcast(np.array(float(rank)), 1) == 1


def layouts() -> None:
    whole = np.arange(24.0).reshape(4, 6)
    frozen = whole.copy()
    frozen.flags.writeable = False
    for crooked in (whole.T, whole[:, ::2], whole[::-1], np.broadcast_to(whole[0], (3, 6))):
        for call in (
            lambda it=crooked: hvd.allreduce(it),
            lambda it=crooked: hvd.allgather(it),
            lambda it=crooked: hvd.broadcast(it, 0),
            lambda it=crooked: hvd.reducescatter(it),
            lambda it=crooked: hvd.alltoall(it, splits=[len(it)] + [0] * (size - 1)),
            lambda it=crooked: hvd.grouped_allreduce([whole, it]),
            lambda it=crooked: hvd.allreduce_(it),
            lambda it=crooked: hvd.send(it, 1 - rank),
        ):
            refused(call, "contiguous", "read-only")
    refused(lambda: hvd.allreduce_(frozen), "read-only")
    refused(lambda: hvd.broadcast_(frozen, 0), "read-only")
    refused(lambda: hvd.grouped_allreduce_([whole.copy(), frozen]), "read-only")
    assert (hvd.allgather(frozen) == np.tile(whole, (size, 1))).all()
    assert (frozen == whole).all()


def foreign_types() -> None:
    foreign = (np.complex64(1), np.complex128(1), np.datetime64(0, "s"), np.float128(1), np.array(["a"]), object())
    for value in foreign:
        array = np.array([value]).ravel()
        for call in (
            lambda it=array: hvd.allreduce(it),
            lambda it=array: hvd.allgather(it),
            lambda it=array: hvd.broadcast(it, 0),
            lambda it=array: hvd.reducescatter(it),
            lambda it=array: hvd.alltoall(it, splits=[1] + [0] * (size - 1)),
            lambda it=array: hvd.grouped_allgather([it]),
        ):
            refused(call, "not supported")


checks = (
    moved_bits_are_kept,
    not_a_number_is_reduced_everywhere,
    infinities_cancel_to_not_a_number,
    nothing_at_all,
    scalars,
    layouts,
    foreign_types,
)
for check in checks:
    check()
    assert (hvd.allreduce(np.ones(9), op=hvd.Sum) == size).all()
report("done", checks=len(checks))
