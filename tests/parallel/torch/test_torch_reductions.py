# SPDX-License-Identifier: Apache-2.0
"""Reductions of torch tensors: every operation and dtype against NumPy, through every function of horovod.torch."""

import numpy as np
import pytest
import torch
from harness.arrays import AVERAGES_OF_TWO, FLOATS, INTEGERS, OPS, averages_of_two, check_reduced, inputs, reduced
from harness.tensors import TORCH_DTYPES, check_tensor, my_tensor, to_numpy, to_torch
from harness.worlds import ROUNDING, on_all_ranks

import horovod.torch as hvd

SHAPES = ((0,), (), (17,), (5, 3, 7), (611,))
WORLDS = ("shm2", "shm4")


@pytest.mark.checked_numbers("allreduce of every data type", against="NumPy")
@pytest.mark.parametrize("op", OPS)
@on_all_ranks(*WORLDS)
def test_allreduce_of_every_dtype(op):
    digests = []
    for dtype in TORCH_DTYPES:
        if op == "Average" and dtype == "bool":
            with pytest.raises(ValueError, match="bool is not supported"):
                hvd.allreduce(torch.ones(3, dtype=torch.bool))
            continue
        group = [inputs(shape, dtype, seed=f"{op} {dtype} {shape}") for shape in SHAPES]
        tensors = [my_tensor(arrays) for arrays in group]
        in_place = [tensor.clone() for tensor in tensors]
        handles = [hvd.allreduce_async_(tensor, op=OPS[op]) for tensor in in_place]
        results = [hvd.allreduce(tensor, op=OPS[op]) for tensor in tensors]
        results += [hvd.allreduce_(tensor.clone(), op=OPS[op]) for tensor in tensors]
        results += hvd.grouped_allreduce(tensors, op=OPS[op])
        results += hvd.grouped_allreduce_([tensor.clone() for tensor in tensors], op=OPS[op])
        results += hvd.synchronize(hvd.grouped_allreduce_async(tensors, op=OPS[op]))
        for tensor, handle in zip(in_place, handles, strict=True):
            assert hvd.synchronize(handle) is tensor
        results += in_place
        for tensor, arrays in zip(tensors, group, strict=True):
            check_tensor(tensor, arrays[hvd.rank()])  # operations that are not in place leave their input unchanged
        digests += [
            check_reduced(to_numpy(result), group[index % len(group)], op) for index, result in enumerate(results)
        ]
    return digests


@pytest.mark.checked_numbers(
    "averages of integer tensors under 64 bits whose sums overflow", against="the exact quotient"
)
@on_all_ranks("shm2")
def test_the_average_of_integers_is_exact():
    for dtype in sorted(AVERAGES_OF_TWO.keys() & set(TORCH_DTYPES)):
        for rows in (1, 2000):
            mine, expected = averages_of_two(dtype, hvd.rank(), rows)
            tensor = to_torch(mine)
            results = [hvd.allreduce(tensor), hvd.synchronize(hvd.allreduce_async(tensor))]
            results += hvd.grouped_allreduce([tensor, tensor])
            results += [hvd.allreduce_(tensor.clone())]
            for result in results:
                check_tensor(result, expected)
            share = np.array_split(expected, 2)[hvd.rank()]
            for result in (hvd.reducescatter(tensor), *hvd.grouped_reducescatter([tensor])):
                check_tensor(result, share)
            check_tensor(tensor, mine)


@on_all_ranks(*WORLDS)
def test_in_place_forms_return_their_argument():
    tensors = [torch.ones(3), torch.ones(2, 2)]
    assert hvd.allreduce_(tensors[0], op=hvd.Sum) is tensors[0]
    assert hvd.broadcast_(tensors[0], 0) is tensors[0]
    assert all(a is b for a, b in zip(hvd.grouped_allreduce_(tensors, op=hvd.Sum), tensors, strict=True))
    results = hvd.synchronize(hvd.grouped_allreduce_async_(tensors, op=hvd.Sum))
    assert isinstance(results, tuple)
    assert all(a is b for a, b in zip(results, tensors, strict=True))
    size = hvd.size()
    check_tensor(tensors[0], torch.full((3,), float(size**3)))
    parameter = torch.nn.Parameter(torch.full((2,), float(hvd.rank())))
    assert hvd.broadcast_(parameter, 1) is parameter
    assert parameter.tolist() == [1.0, 1.0]


@pytest.mark.checked_numbers("reducescatter of every data type", against="NumPy")
@on_all_ranks(*WORLDS)
def test_reducescatter_of_every_dtype():
    for dtype in (*INTEGERS, *FLOATS):
        if dtype not in TORCH_DTYPES:
            continue
        group = [inputs(shape, dtype, seed=f"scatter {shape}") for shape in ((7, 3), (2,), (130, 2))]
        tensors = [my_tensor(arrays) for arrays in group]
        for op, number in (("Sum", hvd.Sum), ("Average", hvd.Average)):
            results = [hvd.reducescatter(tensor, op=number) for tensor in tensors]
            results += hvd.grouped_reducescatter(tensors, op=number)
            results += [hvd.synchronize(hvd.reducescatter_async(tensor, op=number)) for tensor in tensors]
            results += hvd.synchronize(hvd.grouped_reducescatter_async(tensors, op=number))
            for index, result in enumerate(results):
                whole = torch.tensor_split(torch.arange(group[index % 3][0].shape[0]), hvd.size())
                rows = whole[hvd.rank()].tolist()
                expected = reduced(group[index % 3], op)
                check_tensor(result, expected[rows[0] : rows[-1] + 1] if rows else expected[:0])


@on_all_ranks(*WORLDS)
def test_factors_and_the_old_average_argument():
    size = hvd.size()
    result = hvd.allreduce(torch.ones(3), op=hvd.Sum, prescale_factor=2, postscale_factor=0.25)
    check_tensor(result, torch.full((3,), size / 2))
    check_tensor(hvd.reducescatter(torch.ones(size), op=hvd.Sum, prescale_factor=3.0), torch.full((1,), 3.0 * size))
    with pytest.warns(DeprecationWarning, match="average is deprecated") as caught:
        summed = hvd.allreduce(torch.ones(3), average=False)
    with pytest.warns(DeprecationWarning, match="average is deprecated") as caught_later:
        handle = hvd.allreduce_async(torch.ones(3), average=True)
    check_tensor(summed, torch.full((3,), float(size)))
    check_tensor(hvd.synchronize(handle), torch.ones(3))
    assert {warning.filename for warning in (*caught, *caught_later)} == {__file__}


@on_all_ranks(*WORLDS)
def test_compression():
    tensor = torch.full((5,), 1.0 + 2**-12, dtype=torch.float64)  # more bits than the half types have
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        check_tensor(hvd.allreduce(tensor, compression=compression), torch.ones(5, dtype=torch.float64))
        check_tensor(hvd.reducescatter(tensor, compression=compression), torch.ones(5, dtype=torch.float64)[mine_of(5)])
        integers, floats = hvd.grouped_allreduce([torch.ones(2, dtype=torch.int64), tensor], compression=compression)
        check_tensor(integers, torch.ones(2, dtype=torch.int64))
        check_tensor(floats, torch.ones(5, dtype=torch.float64))
    check_tensor(hvd.allreduce(tensor), tensor)


class HalfByTorch(hvd.Compression.fp16):
    """Compressor of a user, derived from Horovod's: torch converts, not the engine."""


@on_all_ranks(*WORLDS)
def test_float32_is_not_rounded_on_one_host():
    tensor = torch.randn(3001, generator=torch.Generator().manual_seed(hvd.rank()))
    tensor[7] = 1e6  # float16 would turn it into infinity
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        for op in (hvd.Sum, hvd.Average):
            plain = hvd.allreduce(tensor, op=op)
            assert torch.isfinite(plain).all()
            check_tensor(hvd.allreduce(tensor, op=op, compression=compression), plain)
            for result in hvd.grouped_allreduce([tensor, tensor], op=op, compression=compression):
                check_tensor(result, plain)


@on_all_ranks(*ROUNDING, limit_s=120)
def test_compression_gives_the_bits_of_torch():
    generator = torch.Generator().manual_seed(hvd.rank())
    whole = torch.randn(60, 70, generator=generator)
    for tensor in (whole, whole[:, ::2], whole[:1, :1], whole[:0]):
        before = tensor.clone()
        ours, by_torch = (hvd.allreduce(tensor, compression=it) for it in (hvd.Compression.fp16, HalfByTorch))
        check_tensor(ours, by_torch)
        check_tensor(tensor, before)
    group = [whole, torch.ones(3, dtype=torch.int64), whole.double(), whole.bfloat16()]
    for tensors in (group, group[:1] * 3):
        ours, by_torch = (
            hvd.grouped_allreduce(tensors, op=hvd.Sum, compression=it, name="group")
            for it in (hvd.Compression.fp16, HalfByTorch)
        )
        for one, other in zip(ours, by_torch, strict=True):
            check_tensor(one, other)
    # A rank whose tensor requires a gradient lets torch convert; the other ranks need not do so.
    tensor = whole.clone().requires_grad_(hvd.rank() == 0)
    check_tensor(
        hvd.allreduce(tensor, compression=hvd.Compression.fp16).detach(), hvd.allreduce(whole, compression=HalfByTorch)
    )


def mine_of(rows):
    return torch.tensor_split(torch.arange(rows), hvd.size())[hvd.rank()]


@on_all_ranks(*WORLDS)
def test_adasum():
    """Orthogonal gradients are added, equal ones averaged."""
    tensor = torch.zeros(hvd.size())
    tensor[hvd.rank()] = 1.0
    check_tensor(hvd.allreduce(tensor, op=hvd.Adasum), torch.ones(hvd.size()))
    check_tensor(hvd.allreduce(torch.full((3,), 2.0), op=hvd.Adasum), torch.full((3,), 2.0))
