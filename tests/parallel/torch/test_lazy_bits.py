# SPDX-License-Identifier: Apache-2.0
"""Tensors with the negative or conjugate bit: operations send their values, and write values back in place."""

import pytest
import torch
from harness.torch_training import on_torch_ranks

import horovod.torch as hvd
from horovod.torch.gradients.parameter_check import ParameterCheck

NUMBERS = pytest.mark.checked_numbers(
    "operations on tensors with the negative bit, which torch.vdot(a, b).conj().imag has", against="NumPy"
)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64)


def negated(values, dtype=torch.float32):
    """Return a tensor of these values whose memory holds the negated values."""
    tensor = torch._neg_view(-torch.tensor(values, dtype=dtype))
    assert tensor.is_neg()
    return tensor


def from_users():
    """Return a tensor whose negative bit torch has set: 5.0 on rank 0, 6.0 on rank 1, -5.0 and -6.0 in memory."""
    a = torch.tensor([1.0 + 0j, 0j])
    b = torch.tensor([complex(2.0, -5.0 - hvd.rank()), 1j])
    value = torch.vdot(a, b).conj().imag
    assert value.is_neg()
    assert value.item() == 5.0 + hvd.rank()
    return value


def check(result, expected):
    assert not result.is_neg()
    assert result.tolist() == expected


@NUMBERS
@on_torch_ranks("shm2")
def test_reductions_and_movements_take_values():
    r = hvd.rank()
    assert hvd.allreduce(from_users(), op=hvd.Sum).item() == 11.0
    assert hvd.broadcast(from_users(), 0).item() == 5.0
    assert hvd.allgather(from_users().reshape(1)).tolist() == [5.0, 6.0]
    for dtype in DTYPES:
        mine = [3 + r, -8, 0, 2 * r]
        check(hvd.allreduce(negated(mine, dtype), op=hvd.Sum), [7, -16, 0, 2])
        check(hvd.allreduce(negated(mine, dtype), op=hvd.Max), [4, -8, 0, 2])
        check(hvd.broadcast(negated(mine, dtype), 1), [4, -8, 0, 2])
        check(hvd.allgather(negated(mine, dtype)), [3, -8, 0, 0, 4, -8, 0, 2])
        check(hvd.reducescatter(negated(mine, dtype), op=hvd.Sum), [7, -16] if r == 0 else [0, 2])
        check(hvd.alltoall(negated(mine, dtype)), [3, -8, 4, -8] if r == 0 else [0, 0, 0, 2])
        output, received = hvd.alltoall(negated(mine, dtype), splits=negated([1, 3], torch.int32))
        check(output, [3, 4] if r == 0 else [-8, 0, 0, -8, 0, 2])
        assert received.tolist() == ([1, 1] if r == 0 else [3, 3])
    check(hvd.allreduce(negated([1.5, -3.0]), compression=hvd.Compression.fp16), [1.5, -3.0])
    check(hvd.synchronize(hvd.allreduce_async(negated([1.0 + r, -2.0]), op=hvd.Sum)), [3.0, -4.0])
    check(hvd.synchronize(hvd.allgather_async(negated([1.0 + r]))), [1.0, 2.0])
    # The bit may be set on some ranks only.
    check(hvd.allreduce(negated([4.0]) if r else torch.tensor([1.0]), op=hvd.Sum), [5.0])


@NUMBERS
@on_torch_ranks("shm2")
def test_groups_take_values():
    r = hvd.rank()
    group = [negated([1.0 + r, 2.0]), torch.tensor([3.0 * r]), negated([-4.0])]
    for tensor, expected in zip(hvd.grouped_allreduce(group, op=hvd.Sum), ([3.0, 4.0], [3.0], [-8.0]), strict=True):
        check(tensor, expected)
    for tensor, expected in zip(hvd.grouped_allgather(group), ([1, 2, 2, 2], [0, 3], [-4, -4]), strict=True):
        check(tensor, expected)
    first, second = hvd.grouped_reducescatter([negated([1.0, 2.0 + r]), negated([5.0, 6.0])], op=hvd.Sum)
    assert (first.item(), second.item()) == ((2.0, 10.0) if r == 0 else (5.0, 12.0))
    addresses = [tensor.data_ptr() for tensor in group]
    results = hvd.grouped_allreduce_(group, op=hvd.Sum)
    assert all(result is tensor for result, tensor in zip(results, group, strict=True))
    assert [tensor.tolist() for tensor in group] == [[3.0, 4.0], [3.0], [-8.0]]
    assert [tensor.data_ptr() for tensor in group] == addresses


@NUMBERS
@on_torch_ranks("shm2")
def test_results_in_place_are_the_value_of_the_tensor():
    r = hvd.rank()
    memory = -torch.tensor([1.0 + r, -2.0, 0.5])
    tensor = torch._neg_view(memory)
    assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
    assert tensor.is_neg()
    assert tensor.tolist() == [3.0, -4.0, 1.0]
    assert memory.tolist() == [-3.0, 4.0, -1.0]  # the bit negates these numbers when they are read
    assert hvd.synchronize(hvd.allreduce_async_(tensor, op=hvd.Sum)) is tensor
    assert tensor.tolist() == [6.0, -8.0, 2.0]
    tensor = negated([1.0 + r, 7.0 * r])
    assert hvd.broadcast_(tensor, 1) is tensor
    assert tensor.tolist() == [2.0, 7.0]
    tensor = negated([5.0 - r])
    assert hvd.synchronize(hvd.broadcast_async_(tensor, 0)) is tensor
    assert tensor.tolist() == [5.0]
    # The bit is set on one rank only.
    tensor = negated([1.0]) if r else torch.tensor([10.0])
    hvd.broadcast_(tensor, 0)
    assert tensor.tolist() == [10.0]


@NUMBERS
@on_torch_ranks("shm2")
def test_point_to_point():
    if hvd.rank() == 0:
        hvd.send(negated([1.0, -2.0]), 1)
        hvd.synchronize(hvd.send_async(torch.tensor([3.0]), 1))
        return
    tensor = torch.zeros(2)
    hvd.recv(tensor, 0)
    assert tensor.tolist() == [1.0, -2.0]
    tensor = negated([0.0])
    assert hvd.synchronize(hvd.recv_async(tensor, 0)) is tensor
    assert tensor.tolist() == [3.0]


@NUMBERS
@on_torch_ranks("shm2")
def test_gradients_of_operations():
    """Autograd may pass gradients with the bit, for example the gradient of an imaginary part."""
    weight = torch.tensor([1.0 + hvd.rank()], requires_grad=True)
    total = hvd.allreduce(weight, op=hvd.Sum, name="total")
    total.backward(negated([2.0 + hvd.rank()]))
    assert weight.grad.tolist() == [5.0]
    weight.grad = None
    gathered = hvd.allgather(torch._neg_view(weight), name="rows")
    assert gathered.tolist() == [-1.0, -2.0]
    gathered.backward(negated([4.0, 6.0]))
    assert weight.grad.tolist() == [-4.0 if hvd.rank() == 0 else -6.0]


@NUMBERS
@on_torch_ranks("shm2")
def test_sparse_tensors():
    tensor = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), negated([1.0, -4.0]), (3,), check_invariants=False)
    result = hvd.sparse_allreduce_async(tensor, "rows", hvd.Sum)()
    assert result.to_dense().tolist() == [2.0, 0.0, -8.0]


@pytest.mark.checked_numbers("broadcast of conjugate and negative views", against="NumPy")
@on_torch_ranks("shm2")
def test_broadcast_parameters_and_optimizer_state():
    r = hvd.rank()
    conjugate = torch.tensor([complex(1 + r, 5.0), 2j]).conj()
    tensors = [conjugate, negated([1.0 + r, -2.0]), conjugate.imag]
    hvd.broadcast_parameters(tensors[:2], root_rank=1)
    assert [it.tolist() for it in tensors] == [[2 - 5j, -2j], [2.0, -2.0], [-5.0, -2.0]]
    hvd.broadcast_parameters([("imaginary", torch.tensor([1j + r]).conj().imag)], root_rank=0)

    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], 0.1)
    if r == 0:
        moments = {"negated": negated([3.0, -1.0]), "conjugate": torch.tensor([1 + 2j]).conj()}
        optimizer.state[weight].update(moments)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    state = optimizer.state[weight]
    assert (state["negated"].tolist(), state["conjugate"].tolist()) == ([3.0, -1.0], [1 - 2j])


class Phase(torch.nn.Module):
    """Complex number with real parameters. On rank 0 only, autograd sets the bit in the imaginary part's gradient.

    If all gradients had the bit, their sum would be right even if the optimizer ignored the bit.
    """

    def __init__(self):
        super().__init__()
        self.real = torch.nn.Parameter(torch.tensor(2.0))
        self.imaginary = torch.nn.Parameter(torch.tensor(3.0))

    def forward(self, factor):
        if hvd.rank() == 0:
            return (torch.complex(self.real, self.imaginary).conj() * factor).real
        return (torch.complex(self.real, -self.imaginary) * factor).real


def train_phase(wrap, factors):
    """Make a step for each factor. Return the parameters, and True if a gradient had the bit before the reduction."""
    model, bits = Phase(), []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda it: bits.append(it.grad.is_neg()))
    optimizer = wrap(torch.optim.SGD(model.parameters(), 0.1), model)
    for factor in factors:
        optimizer.zero_grad()
        model(factor).backward()
        optimizer.step()
    return [it.item() for it in model.parameters()], any(bits)


WRAPPERS = {
    "plain": {},
    "groups": {"groups": 1},
    "fp16": {"compression": hvd.Compression.fp16},
    "buckets": {"gradient_as_bucket_view": True},
    "adasum": {"op": hvd.Adasum},
}


@pytest.mark.checked_numbers("training whose gradients have the negative bit", against="a single process")
@pytest.mark.parametrize("options", WRAPPERS)
@on_torch_ranks("shm2")
def test_gradients_with_the_bit(options):
    factors = torch.tensor([1 + 2j, 0.5 - 4j, 3j])
    mine = [it + hvd.rank() * (2 - 1j) for it in factors] if options != "adasum" else factors
    means = [it + (1 - 0.5j) for it in factors] if options != "adasum" else factors
    expected, has_bit = train_phase(lambda optimizer, _: optimizer, means)
    assert has_bit == (hvd.rank() == 0)
    got, _ = train_phase(
        lambda it, model: hvd.DistributedOptimizer(it, model.named_parameters(), **WRAPPERS[options]), mine
    )
    assert got == pytest.approx(expected, abs=1e-5)
    return got


@pytest.mark.checked_numbers("a large gradient with the negative bit", against="NumPy")
@on_torch_ranks("shm2")
def test_a_large_gradient_with_the_bit():
    weight = torch.nn.Parameter(torch.zeros(50_000))
    if hvd.rank() == 0:
        weight.register_hook(lambda grad: torch._neg_view(grad.neg()))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 1.0), [("weight", weight)])
    (weight * (1.0 + hvd.rank())).sum().backward()
    assert weight.grad[::7].eq(1.5).all()
    optimizer.step()
    assert weight.eq(-1.5).all()


@on_torch_ranks("shm2")
def test_a_library_that_reduces_by_itself():
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 1.0), [("weight", weight)])
    weight.grad = negated([1.0, -2.0]) if hvd.rank() == 0 else torch.tensor([2.0, -2.0])
    handle, _ = optimizer._allreduce_grad_async(weight)
    hvd.synchronize(handle)
    assert weight.grad.tolist() == [1.5, -2.0]


@on_torch_ranks("shm2")
def test_the_parameter_check_compares_values():
    plain = torch.tensor([1.0, -2.0])
    conjugate = torch.tensor([1 - 2j])
    expected = ParameterCheck([("real", plain), ("complex", conjugate)]).checksum()
    lazy = ParameterCheck([("real", negated([1.0, -2.0])), ("complex", torch.tensor([1 + 2j]).conj())])
    assert lazy.checksum() == expected
