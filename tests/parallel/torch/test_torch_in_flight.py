# SPDX-License-Identifier: Apache-2.0
"""Tensors that lose their memory while an operation uses them: the wait raises an error with the tensor's name."""

import contextlib

import numpy as np
import pytest
import torch
from harness.worlds import on_all_ranks

import horovod.torch as hvd
from horovod._engine import ArrayCalls
from horovod.common.context import default_context
from horovod.common.handles import translate
from horovod.torch import mpi_ops
from horovod.torch.adapter import plain_tensors

WITHOUT_TABLE = ArrayCalls(plain_tensors(None), default_context.handles.plain, translate)
COUNT = 1000  # number of elements


def replace_data(tensor):
    tensor.data = torch.zeros(COUNT)


def set_another(tensor):
    with torch.no_grad():
        tensor.set_(torch.zeros(COUNT))


# These calls free the memory at once, so tests make them after the engine has finished, and before synchronize().
RESIZED = {
    "resize_": lambda tensor: tensor.resize_(4 * COUNT),
    "a smaller resize_": lambda tensor: tensor.resize_(COUNT // 2),
    "the storage, larger": lambda tensor: tensor.untyped_storage().resize_(16 * COUNT),
    "the storage, gone": lambda tensor: tensor.untyped_storage().resize_(0),
}
REPLACED = {"set_": set_another, "data": replace_data}

MAKERS = {"native": torch.Tensor.clone, "Python": lambda data: torch.nn.Parameter(data.clone(), requires_grad=False)}
STARTS = {
    "allreduce": lambda tensor, name: hvd.allreduce_async(tensor, name=name, op=hvd.Sum),
    "allreduce in place": lambda tensor, name: hvd.allreduce_async_(tensor, name=name, op=hvd.Sum),
    "group in place": lambda tensor, name: hvd.grouped_allreduce_async_([tensor], name=name, op=hvd.Sum),
    "allgather": lambda tensor, name: hvd.allgather_async(tensor, name=name),
    "broadcast in place": lambda tensor, name: hvd.broadcast_async_(tensor, 0, name=name),
    "alltoall": lambda tensor, name: hvd.alltoall_async(tensor, name=name),
    "reducescatter": lambda tensor, name: hvd.reducescatter_async(tensor, name=name, op=hvd.Sum),
}


def wait_until_done(handle):
    while not hvd.poll(handle):
        pass


@contextlib.contextmanager
def without_table():
    """Use the path of an older torch, which has no table of functions for other libraries."""
    before, mpi_ops._native = mpi_ops._native, WITHOUT_TABLE
    try:
        yield
    finally:
        mpi_ops._native = before


@pytest.mark.parametrize("start", STARTS)
@on_all_ranks("shm2")
def test_a_tensor_that_was_resized_is_named(start):
    """The ranks and the name can be used again afterwards."""
    for maker, make in MAKERS.items():
        for resize in RESIZED.values():
            tensor = make(torch.ones(COUNT))
            handle = STARTS[start](tensor, f"in flight {maker}")
            wait_until_done(handle)
            resize(tensor)
            with pytest.raises(ValueError, match=rf"'\w+.in flight {maker}.*' was resized or given other memory"):
                hvd.synchronize(handle)
            again = make(torch.ones(COUNT))
            hvd.synchronize(STARTS[start](again, f"in flight {maker}"))


@pytest.mark.parametrize("maker", MAKERS)
@on_all_ranks("shm2", "tcp2")
def test_memory_that_a_tensor_lost_is_there_for_the_engine(maker):
    """Rank 0 replaces its tensor's memory before rank 1 calls. Rank 1 must get what rank 0 had submitted."""
    for replace in REPLACED.values():
        tensor = MAKERS[maker](torch.full((COUNT,), 3.0))
        if hvd.rank() == 0:
            handle = hvd.allreduce_async_(tensor, name="replaced", op=hvd.Sum)
            replace(tensor)
            # These would reuse the tensor's memory if it had been freed.
            others = [torch.full((COUNT,), -1.0) for _ in range(20)]
        hvd.allreduce(torch.zeros(1), name="rank 0 has replaced it")
        if hvd.rank() == 0:
            with pytest.raises(ValueError, match=r"'allreduce.replaced' was resized or given other memory"):
                hvd.synchronize(handle)
            assert all((other == -1.0).all() for other in others), "the engine wrote to somebody else's memory"
            assert (tensor == 0).all()
        else:
            result = hvd.allreduce(tensor, name="replaced", op=hvd.Sum)
            assert (result == 6.0).all()


DROPS = {
    "allreduce": lambda tensor: hvd.allreduce_async(tensor, name="dropped", op=hvd.Sum),
    "group": lambda tensor: hvd.grouped_allreduce_async([tensor], name="dropped", op=hvd.Sum),
    "compressed": lambda tensor: hvd.allreduce_async(tensor.half().float(), name="dropped", op=hvd.Sum),
    "view": lambda tensor: hvd.allreduce_async(tensor.view(10, -1), name="dropped", op=hvd.Sum),
}


@pytest.mark.checked_numbers("torch tensors that the program drops or replaces while they are reduced", against="NumPy")
@pytest.mark.parametrize("maker", MAKERS)
@on_all_ranks("shm2")
def test_a_tensor_may_be_dropped_meanwhile(maker):
    """Rank 1 calls after rank 0 has dropped its tensor and has allocated other tensors of that size."""
    count = 100 * COUNT
    for start in DROPS.values():
        tensor = MAKERS[maker](torch.full((count,), 3.0))
        if hvd.rank() == 0:
            handle = start(tensor)
            del tensor
            others = [torch.full((count,), -1.0) for _ in range(20)]
        hvd.allreduce(torch.zeros(1), name="rank 0 has dropped it")
        if hvd.rank() == 1:
            handle = start(tensor)
        result = hvd.synchronize(handle)
        np.testing.assert_array_equal(np.ravel(result[0] if isinstance(result, list) else result), np.full(count, 6.0))
        if hvd.rank() == 0:
            assert all((other == -1.0).all() for other in others), "the engine wrote to somebody else's memory"


@on_all_ranks("shm2")
def test_what_moves_no_element_is_nobodys_business():
    for maker in MAKERS.values():
        tensor = maker(torch.ones(4, 3))
        handle = hvd.allreduce_async_(tensor, name="still there", op=hvd.Sum)
        tensor.t_()
        assert (hvd.synchronize(handle) == hvd.size()).all()
        handle = hvd.allreduce_async_(tensor.t(), name="still there", op=hvd.Sum)
        tensor.unsqueeze_(0)
        hvd.synchronize(handle)
        assert (tensor == hvd.size() ** 2).all()
        empty = maker(torch.ones(0))
        assert hvd.synchronize(hvd.allreduce_async(empty, name="empty")).shape == (0,)


@on_all_ranks("shm2")
def test_the_same_with_an_older_torch():
    with without_table():
        tensor = torch.ones(COUNT)
        handle = hvd.allreduce_async_(tensor, name="older")
        wait_until_done(handle)
        tensor.untyped_storage().resize_(0)
        with pytest.raises(ValueError, match=r"'allreduce.older' was resized"):
            hvd.synchronize(handle)
        assert (hvd.synchronize(hvd.allreduce_async(torch.ones(3), name="older 2", op=hvd.Sum)) == hvd.size()).all()


def backward_with(parameters, optimizer):
    optimizer.zero_grad()
    sum((parameter * (hvd.rank() + 1)).sum() for parameter in parameters).backward()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@on_all_ranks("shm2")
def test_a_gradient_that_lost_its_memory_between_backward_and_step_is_named(layout):
    """If step() waits, gradients are in flight after backward(). One layout takes the native path, the other not."""
    weight = torch.nn.Parameter(torch.ones(2, 3, 5, 5).to(memory_format=layout))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 0.1), [("w", weight)])
    optimizer._reducer._wait_in_backward = False
    (weight * 2).sum().backward()
    optimizer.step()  # in the first round no gradient is in flight before step()
    optimizer.zero_grad()
    (weight * 2).sum().backward()
    weight.grad.set_(torch.zeros(2, 3, 5, 5))
    with pytest.raises(ValueError, match=r"'allreduce.w' was resized or given other memory"):
        optimizer.step()
    optimizer.zero_grad()
    (weight * 2).sum().backward()
    optimizer.step()
    assert torch.allclose(weight, torch.full((2, 3, 5, 5), 0.6))


LAYOUTS = {
    "in memory order": lambda: torch.zeros(2, 3, 4, 4),
    "channels last": lambda: torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last),
}
OPTIONS = {"each for itself": {}, "a group": {"groups": 1}, "fp16": {"compression": hvd.Compression.fp16}}


@pytest.mark.checked_numbers("a gradient that was replaced before step()", against="the exact value, or an error")
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
@on_all_ranks("shm2")
def test_a_gradient_that_was_replaced_between_backward_and_step_is_named(layout, options):
    """step() must not use a gradient that was replaced on this rank, because ranks would then differ."""
    weight = torch.nn.Parameter(LAYOUTS[layout]())
    optimizer = torch.optim.SGD([weight], 1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, [("w", weight)], op=hvd.Sum, **OPTIONS[options])
    optimizer._reducer._wait_in_backward = False
    backward_with([weight], optimizer)
    weight.grad = weight.grad * 2
    optimizer.step()  # in the first round step() sends the gradients, so it sends the doubled ones
    assert (weight == -6).all()
    backward_with([weight], optimizer)
    weight.grad = weight.grad * 2
    with pytest.raises(ValueError, match=r"the gradient of 'allreduce\.w' was replaced .*synchronize\(\)"):
        optimizer.step()
    assert (weight == -6).all()
    backward_with([weight], optimizer)
    optimizer.synchronize()
    weight.grad = weight.grad * 2  # the remedy that the error names
    with optimizer.skip_synchronize():
        optimizer.step()
    assert (weight == -12).all()
    backward_with([weight], optimizer)
    weight.grad = None  # dropped on all ranks, so the step does without it
    optimizer.step()
    return weight.tolist()


@pytest.mark.checked_numbers(
    "a gradient that was changed in place before step()", against="the exact value, or an error"
)
@pytest.mark.parametrize("options", OPTIONS)
@on_all_ranks("shm2")
def test_a_gradient_that_was_changed_in_place_between_backward_and_step_is_named(options):
    weights = [torch.nn.Parameter(torch.zeros(count)) for count in (3, 50_000)]
    optimizer = torch.optim.SGD(weights, 1.0)
    named = [("small", weights[0]), ("large", weights[1])]
    optimizer = hvd.DistributedOptimizer(optimizer, named, op=hvd.Sum, **OPTIONS[options])
    optimizer._reducer._wait_in_backward = False
    backward_with(weights, optimizer)
    torch.nn.utils.clip_grad_value_(weights, 1.0)
    optimizer.step()  # in the first round step() sends the gradients, after the program has changed them
    assert all((weight == -2).all() for weight in weights)
    backward_with(weights, optimizer)
    torch.nn.utils.clip_grad_value_(weights, 1.0)
    with pytest.raises(ValueError, match=r"the gradient of 'allreduce\.\w+' was changed in place .*synchronize\(\)"):
        optimizer.step()
    assert all((weight == -2).all() for weight in weights)
    backward_with(weights, optimizer)
    optimizer.synchronize()
    torch.nn.utils.clip_grad_value_(weights, 1.0)
    with optimizer.skip_synchronize():
        optimizer.step()
    assert all((weight == -3).all() for weight in weights)
    backward_with(weights, optimizer)
    optimizer.step()
    return [weight.tolist() for weight in weights]


@on_all_ranks("shm2")
def test_a_gradient_that_was_dropped_before_the_first_step_counts_as_zeros():
    """In the first round step() sends the gradients. Rank 0 has one for the first weight; no rank has the second."""
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights, 1.0), op=hvd.Sum)
    optimizer._reducer._wait_in_backward = False
    backward_with(weights, optimizer)
    weights[1].grad = None
    if hvd.rank():
        weights[0].grad = None
    optimizer.step()
    assert (weights[0] == -1).all()
    assert (weights[1] == 0).all()


@on_all_ranks("shm2")
def test_a_sparse_gradient_that_was_replaced_between_backward_and_step_is_named():
    table = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), 1.0), [("rows", table.weight)])
    optimizer._reducer._wait_in_backward = False
    for step in range(2):
        optimizer.zero_grad()
        table(torch.tensor([hvd.rank()])).sum().backward()
        if step:
            table.weight.grad = table.weight.grad * 2
            with pytest.raises(ValueError, match=r"the gradient of 'allreduce\.rows' was replaced"):
                optimizer.step()
        else:
            optimizer.step()
