# SPDX-License-Identifier: Apache-2.0
"""Ranks whose communication hooks differ or fail: every rank raises an error that names hook, rank and cause."""

import functools

import pytest
import torch
from harness.comm_hooks import backward, parameters_of, simple, step, two_stage_hook, values
from harness.torch_training import on_torch_ranks

import horovod.torch as hvd
from horovod.torch.hooks import allreduce_hook


def with_argument(bucket, factor):
    reduced = yield bucket.allreduce_async(bucket.tensor)
    return reduced * factor


DIFFERENT = {
    "another hook": (two_stage_hook, "'allreduce_hook' on rank 0, 'two_stage_hook' on rank 1"),
    "no hook": (None, "'allreduce_hook' on rank 0, none on rank 1"),
    "arguments": (
        functools.partial(with_argument, factor=3),
        r"'with_argument\(factor=2\)' on rank 0, 'with_argument\(factor=3\)' on rank 1",
    ),
}


@pytest.mark.parametrize("case", DIFFERENT)
@on_torch_ranks("shm2", "shm4")
def test_ranks_with_different_hooks(case):
    theirs, text = DIFFERENT[case]
    mine = functools.partial(with_argument, factor=2) if case == "arguments" else allreduce_hook
    for place in ("backward", "step"):
        parameters = parameters_of(2)
        optimizer = simple(parameters, theirs if hvd.rank() == 1 else mine)
        for _ in range(2):  # twice, because a program that goes on must get the error again
            with pytest.raises(hvd.HorovodMismatchError, match=f"different communication hooks: {text}. On every"):
                backward(*parameters) if place == "backward" else optimizer.step()
            optimizer.zero_grad()


@on_torch_ranks("shm2", "shm4")
def test_buckets_that_become_different():
    parameters = parameters_of(3, 2)
    optimizer = simple(parameters)
    step(optimizer, *parameters)
    if hvd.rank() == 1:
        optimizer._reducer._flights.comm_hook._take("allreduce_hook", ())
    with pytest.raises(
        hvd.HorovodMismatchError, match="bucket 0 holds 2 elements of float32 on cpu, of 'w1' on rank 0"
    ):
        step(optimizer, *parameters)


class Failing:
    """Hook that fails on one rank, in one bucket, at one stage, while `fails` is set."""

    def __init__(self, rank, index, stage):
        self.where = (rank, index)
        self.stage = stage
        self.fails = True

    def describe(self):
        return "failing"

    def __call__(self, bucket):
        fails = self.fails and self.where == (hvd.rank(), bucket.index)
        if fails and self.stage == 0:
            raise ValueError("not at all")
        gathered = yield bucket.allgather_async(bucket.tensor)
        if fails and self.stage == 1:
            raise ValueError("not at all")
        reduced = yield bucket.allreduce_async(torch.stack(gathered).sum(0) / bucket.size)
        if fails and self.stage == 2:
            return reduced[1:]
        return reduced


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize(("index", "stage"), [(0, 0), (1, 1), (2, 2)])
@on_torch_ranks("shm2", "shm4")
def test_a_hook_that_fails_on_one_rank(index, stage, wait):
    parameters = parameters_of(3, 2, 4)
    hook = Failing(hvd.size() - 1, index, stage)
    optimizer = simple(parameters, hook, wait)
    rank, why = hvd.size() - 1, "ValueError: not at all" if stage < 2 else r"ValueError: it returned .* shape \(2,\)"
    text = f"hook 'failing' failed on rank {rank} in bucket {index} of the optimizer .* 'w0': {why}"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=text) as raised:
            step(optimizer, *parameters)
        assert (raised.value.__cause__ is not None) == (hvd.rank() == rank)
        assert all(it.grad.flatten()[0].item() == 1.0 for it in parameters)
    hook.fails = False
    optimizer.zero_grad()
    hvd.barrier()
    step(optimizer, *parameters)
    assert values(parameters) == [1.0 - hvd.size()] * 3


BROKEN = {
    "no generator": (lambda bucket: bucket.tensor, "TypeError: it returned Tensor; write a generator function"),
    "no handle": (None, "TypeError: it yielded str; yield what bucket.allreduce_async"),
}


def yields_a_text(bucket):
    yield "text"


@pytest.mark.parametrize("case", BROKEN)
@on_torch_ranks("shm2")
def test_hooks_that_are_none(case):
    hook, text = BROKEN[case]
    parameters = parameters_of(3)
    optimizer = simple(parameters, hook or yields_a_text)
    with pytest.raises(RuntimeError, match=f"failed on rank 0 in bucket 0 .*{text}"):
        step(optimizer, *parameters)


@on_torch_ranks("shm2")
def test_ranks_whose_collectives_differ():
    def unequal(bucket):
        reduced = yield bucket.allreduce_async(bucket.tensor[hvd.rank() :].clone())
        return reduced

    parameters = parameters_of(3)
    optimizer = simple(parameters, unequal)
    with pytest.raises(RuntimeError, match="failed on rank 0 in bucket 0 .*HorovodMismatchError.*hook.w0"):
        step(optimizer, *parameters)


@pytest.mark.parametrize("wait", [True, False])
@on_torch_ranks("shm2", "shm4")
def test_sparse_gradients_are_refused_by_name_or_made_dense(wait):
    table = torch.nn.Embedding(4, 3, sparse=True)
    other = parameters_of(2)[0]
    optimizer = simple([other, table.weight], wait=wait)

    def train():
        for _ in range(2):
            optimizer.zero_grad()
            loss = other.sum() + (table(torch.tensor([1, 3])).sum() if hvd.rank() == 1 else 0.0)
            loss.backward()
            optimizer.step()

    with pytest.raises(ValueError, match="The gradient of 'w1' is sparse.*sparse_as_dense=True"):
        train()
    other_table = torch.nn.Embedding(4, 3, sparse=True)
    with torch.no_grad():
        other_table.weight.zero_()
    dense = simple([other_table.weight], wait=wait, sparse_as_dense=True)
    for _ in range(2):
        dense.zero_grad()
        other_table(torch.tensor([1, 3])).sum().backward()
        dense.step()
        assert other_table.weight.grad.is_sparse
    assert other_table.weight[:, 0].tolist() == [0.0, -2.0 * hvd.size(), 0.0, -2.0 * hvd.size()]


def register(**options):
    optimizer = torch.optim.SGD(parameters_of(2), 1.0)
    hvd.register_comm_hook(hvd.DistributedOptimizer(optimizer, **options), allreduce_hook)


@on_torch_ranks("shm2")
def test_what_is_refused_when_a_hook_is_registered():
    plain = torch.optim.SGD(parameters_of(2), 1.0)
    with pytest.raises(TypeError, match=r"needs what hvd.DistributedOptimizer\(\) returns, not SGD"):
        hvd.register_comm_hook(plain, allreduce_hook)
    with pytest.raises(TypeError, match="needs a generator function, not int"):
        simple(parameters_of(2), 3)
    with pytest.raises(ValueError, match="bucket_bytes must be at least 1, not 0"):
        simple(parameters_of(2), bucket_bytes=0)
    with pytest.raises(ValueError, match=r"does not support op=hvd\.Adasum"):
        register(op=hvd.Adasum)
    with pytest.raises(ValueError, match=r"op=hvd\.Average and op=hvd\.Sum only"):
        register(op=hvd.Max)
    with pytest.raises(ValueError, match=r"needs compression=hvd\.Compression\.none"):
        simple(parameters_of(2), compression=hvd.Compression.fp16)
    with pytest.raises(ValueError, match="'w0' is torch.complex64"):
        simple(parameters_of(2, dtype=torch.complex64))


@on_torch_ranks("shm2")
def test_another_hook_may_come_until_the_first_exchange():
    parameters = parameters_of(3, 2)
    optimizer = simple(parameters, two_stage_hook)
    calls = []

    def counting_hook(bucket):
        calls.append(bucket.index)
        return (yield from allreduce_hook(bucket))

    hvd.register_comm_hook(optimizer, counting_hook, bucket_bytes=1)
    step(optimizer, *parameters)
    assert sorted(calls) == [0, 1]
    with pytest.raises(RuntimeError, match="comes too late"):
        hvd.register_comm_hook(optimizer, allreduce_hook)
