# SPDX-License-Identifier: Apache-2.0
"""Operations in compiled functions: one graph, with the values and gradients of eager code.

The tests use backends of torch.compile that generate no code, because code generation would take minutes.
"""

import pytest
import torch
from harness.tensors import check_tensor
from harness.worlds import on_all_ranks

import horovod.torch as hvd
from horovod.torch.graph import HAS_OPERATORS

WORLDS = ("shm2",)  # four ranks would only compile for twice as long


def compiled(function, unknown_sizes=False, **options):
    torch._dynamo.reset()
    # torch < 2.4 does not need aot_eager, because there every operation leaves the graph.
    if HAS_OPERATORS:
        torch._dynamo.config.capture_dynamic_output_shape_ops = unknown_sizes
    return torch.compile(function, backend="aot_eager" if HAS_OPERATORS else "eager", **options)


def check_same(function, unknown_sizes=False, **options):
    """Check that a function of one tensor has equal outputs and gradients when compiled and in eager code."""
    start = torch.arange(24.0).reshape(12, 2) + hvd.rank()
    tensors = [start.clone().requires_grad_() for _ in range(2)]
    whole = {"fullgraph": True} if HAS_OPERATORS else {}
    outputs = [function(tensors[0]), compiled(function, unknown_sizes, **whole, **options)(tensors[1])]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=0)
    for output in outputs:
        output.pow(2).sum().backward()
    torch.testing.assert_close(tensors[1].grad, tensors[0].grad, rtol=0, atol=0)


def split(tensor):
    return hvd.alltoall(tensor * 2, splits=[hvd.rank() % 3 + 1] * hvd.size())[0] + 1


FUNCTIONS = {
    "allreduce": lambda tensor: hvd.allreduce(tensor * 2, op=hvd.Sum, name="graph") + 1,
    "allreduce, averaged and compressed": lambda tensor: hvd.allreduce(tensor, compression=hvd.Compression.fp16) + 1,
    "broadcast": lambda tensor: hvd.broadcast(tensor * 2, 1) + hvd.size() * hvd.rank(),
    "reducescatter": lambda tensor: hvd.reducescatter(tensor * 2, op=hvd.Sum, prescale_factor=2.0) + 1,
    "allgather": lambda tensor: hvd.allgather(tensor * 2) + 1,
    "alltoall": lambda tensor: hvd.alltoall(tensor * 2) + 1,
    "grouped_allreduce": lambda tensor: sum(hvd.grouped_allreduce([tensor * 2, tensor[1]])),
    "grouped_allgather": lambda tensor: sum(part.sum(0) for part in hvd.grouped_allgather([tensor * 2, tensor[:1]])),
    "grouped_reducescatter": lambda tensor: sum(hvd.grouped_reducescatter([tensor * 2, tensor], op=hvd.Sum)),
}
UNKNOWN_SIZES = {
    "allgather of different sizes": lambda tensor: hvd.allgather(tensor[: hvd.rank() + 1] * 2) + 1,
    "alltoall": FUNCTIONS["alltoall"],
    "alltoall with splits": split,
}


@on_all_ranks(*WORLDS, limit_s=50)
def test_blocking_operations_stay_in_the_graph():
    for function in FUNCTIONS.values():
        check_same(function)


@pytest.mark.skipif(not HAS_OPERATORS, reason="this torch has no operators with gradients; operations leave the graph")
@on_all_ranks("shm2")
def test_the_compiler_may_choose_the_strides():
    """Eager code refuses such strides, but in compiled code the user cannot see which strides the compiler chooses."""
    tensor = torch.arange(6.0).reshape(2, 3)
    result = compiled(lambda it: hvd.allreduce(it.t() * 1.0), fullgraph=True)(tensor)
    torch.testing.assert_close(result, tensor.t(), rtol=0, atol=0)


@on_all_ranks(*WORLDS)
def test_sizes_that_only_running_tells():
    for function in UNKNOWN_SIZES.values():
        check_same(function, unknown_sizes=True)


@on_all_ranks("shm2")
def test_sizes_that_vary_from_call_to_call():
    function = compiled(lambda tensor: hvd.reducescatter(hvd.allgather(tensor) * 2, op=hvd.Sum), dynamic=True)
    for rows in (2, 3, 5):
        check_tensor(function(torch.ones(rows, 2)), torch.full((rows, 2), 2.0 * hvd.size()))


def overwrite(tensor):
    copy = tensor * 2
    hvd.allreduce_(copy, op=hvd.Sum)
    hvd.broadcast_(copy, 1)
    hvd.grouped_allreduce_([copy], op=hvd.Max)
    return copy + 1


@on_all_ranks(*WORLDS)
def test_in_place_operations():
    start = torch.full((3,), float(hvd.rank()))
    whole = {"fullgraph": True} if HAS_OPERATORS else {}
    check_tensor(compiled(overwrite, **whole)(start), overwrite(start))
    target = torch.full((2, 3), float(hvd.rank())).t()  # an argument that is not contiguous
    if HAS_OPERATORS:
        compiled(lambda tensor: hvd.broadcast_(tensor, 1), **whole)(target)
        check_tensor(target, torch.ones(3, 2))


def through_a_handle(tensor):
    handle = hvd.allreduce_async(tensor * 2, op=hvd.Sum)
    other = tensor + 1
    return hvd.synchronize(handle) + other


@on_all_ranks(*WORLDS)
def test_handles_break_the_graph_and_work():
    start = torch.full((3,), float(hvd.rank()))
    check_tensor(compiled(through_a_handle)(start), through_a_handle(start))


@pytest.mark.skipif(not HAS_OPERATORS, reason="this torch has no operators with gradients; operations leave the graph")
@on_all_ranks("shm2")
def test_ranks_of_different_sizes_in_a_graph_for_equal_ones():
    function = compiled(lambda tensor: hvd.allgather(tensor), fullgraph=True)
    with pytest.raises(ValueError, match="has 3 rows instead of.*capture_dynamic_output_shape_ops = True"):
        function(torch.ones(hvd.rank() + 1))


@pytest.mark.skipif(not HAS_OPERATORS, reason="this torch has no operators with gradients; operations leave the graph")
@on_all_ranks("shm2", limit_s=50)
def test_operators_are_what_they_say():
    from horovod.torch import operators

    assert operators.allreduce
    ops = torch.ops.horovod
    reduction = ("check", hvd.Sum, 1.0, 1.0, 0)

    def tensor():
        return torch.arange(8.0).reshape(4, 2).requires_grad_()

    torch.library.opcheck(ops.allreduce, (tensor(), *reduction))
    torch.library.opcheck(ops.allreduce_, (tensor().detach(), *reduction))
    torch.library.opcheck(ops.grouped_allreduce, ([tensor(), tensor()], *reduction))
    torch.library.opcheck(ops.reducescatter, (tensor(), *reduction))
    torch.library.opcheck(ops.grouped_reducescatter, ([tensor(), tensor()], *reduction))
    torch.library.opcheck(ops.broadcast, (tensor(), 1, "check", 0))
    torch.library.opcheck(ops.broadcast_, (tensor().detach(), 1, "check", 0))
    torch.library.opcheck(ops.allgather, (tensor(), 8, "check", 0))
    torch.library.opcheck(ops.allgather, (tensor(), None, "check", 0))
    torch.library.opcheck(ops.grouped_allgather, ([tensor()], [8], "check", 0))
    torch.library.opcheck(ops.alltoall, (tensor(), None, 4, "check", 0))
    torch.library.opcheck(ops.alltoall, (tensor(), torch.tensor([1, 2], dtype=torch.int32), None, "check", 0))


def negated(values):
    """Return a tensor of these values with the negative bit: its memory holds the negated values."""
    return torch._neg_view(-torch.tensor(values))


def as_operators(tensor, group):
    return hvd.allreduce(tensor, op=hvd.Sum, name="one"), hvd.grouped_allreduce(group, op=hvd.Sum, name="group")


@pytest.mark.checked_numbers("compiled operations on tensors with the negative bit", against="the exact values")
@on_all_ranks("shm2", limit_s=120)
def test_the_negative_bit():
    r = hvd.rank()
    one, group = torch.compile(as_operators, backend="eager")(
        negated([1.0 + r, -3.0]), [negated([2.0]), torch.tensor([r + 0.5])]
    )
    assert one.tolist() == [3.0, -6.0]
    assert [it.tolist() for it in group] == [[4.0], [2.0]]
    in_place = torch.compile(lambda it: hvd.allreduce_(it, op=hvd.Sum, name="place"), backend="eager")
    tensor = negated([1.0 + r, -3.0])
    in_place(tensor)
    assert tensor.tolist() == [3.0, -6.0]
