# SPDX-License-Identifier: Apache-2.0
"""Compressing hooks for DistributedDataParallel: values, saved state, NaN and infinity, and refused arguments."""

import logging
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from harness.torch_groups import on_torch_ranks, process_group
from harness.torch_hooks_reference import REFERENCES
from harness.worlds import SHM3
from torch.nn.parallel import DistributedDataParallel

from horovod.torch import ddp_hooks

pytestmark = pytest.mark.timeout(200)

STEPS = 20
METHODS = ("int8", "topk", "powersgd")
HOOKS = {"int8": ddp_hooks.int8_hook, "topk": ddp_hooks.topk_hook, "powersgd": ddp_hooks.powersgd_hook}


def state_of(method, **more):
    """Return the method's state with the arguments that its reference uses."""
    if method == "int8":
        return ddp_hooks.Int8State(16, **{"min_bytes": 0, **more})
    if method == "topk":
        return ddp_hooks.TopKState(0.1, **{"min_bytes": 0, **more})
    return ddp_hooks.PowerSGDState(2, 3, min_rate=0.5, **{"min_bytes": 0, **more})


def network(dtype=torch.float32):
    torch.manual_seed(3)
    layers = [torch.nn.Linear(inputs, outputs) for inputs, outputs in pairwise((8, 32, 32, 24, 16, 4))]
    return torch.nn.Sequential(*[part for layer in layers for part in (layer, torch.nn.Tanh())]).to(dtype)


def backward(model, rank, step, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs, targets = torch.randn(6, 8, generator=generator), torch.randn(6, 4, generator=generator)
    torch.nn.functional.mse_loss(model(inputs.to(dtype)), targets.to(dtype)).backward()


class Watched:
    """Model under DDP with small buckets and a hook; records the parameters of each bucket in the last step."""

    def __init__(self, method, state, dtype=torch.float32, **options):
        self.plain = network(dtype)
        self.ddp = DistributedDataParallel(self.plain, bucket_cap_mb=0.001, **options)
        self.state, self.hook, self.buckets = state, HOOKS[method], []
        self.optimizer = torch.optim.SGD(self.plain.parameters(), lr=0.05, momentum=0.9)
        self.numbers = {id(it): number for number, it in enumerate(self.plain.parameters())}
        self.ddp.register_comm_hook(state, self._watch)

    def _watch(self, state, bucket):
        if bucket.index() == 0:
            self.buckets = []
        self.buckets.append([self.numbers[id(it)] for it in bucket.parameters()])
        return self.hook(state, bucket)

    def train(self, rank, steps):
        for step in steps:
            self.optimizer.zero_grad()
            backward(self.ddp, rank, step)
            self.optimizer.step()
        return self.weights()

    def weights(self):
        return torch.cat([it.detach().reshape(-1) for it in self.plain.parameters()])

    def gradients(self):
        """Return each bucket's gradients."""
        parameters = list(self.plain.parameters())
        return [torch.cat([parameters[number].grad.reshape(-1) for number in bucket]) for bucket in self.buckets]


class ReferenceTraining:
    """Equal training in one process: a reference averages the gradients of all ranks in the recorded buckets."""

    def __init__(self, method, size, *, feedback):
        self.method, self.size, self.feedback = method, size, feedback
        self.model, self.known = network(), {}
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.05, momentum=0.9)

    def step(self, number, buckets):
        by_rank = []
        for rank in range(self.size):
            self.optimizer.zero_grad()
            backward(self.model, rank, number)
            by_rank.append([it.grad.clone() for it in self.parameters])
        for index, bucket in enumerate(buckets):
            known = self.known.get(index)
            if known is None or known[0] != bucket:  # DDP has rearranged its buckets
                shapes = tuple(tuple(self.parameters[it].shape) for it in bucket)
                reference = REFERENCES[self.method](self.size, index, shapes, feedback=self.feedback)
                known = self.known[index] = (bucket, reference)
            flat = [torch.cat([gradients[it].reshape(-1) for it in bucket]).numpy() for gradients in by_rank]
            average = torch.from_numpy(known[1].average(flat, number))
            for it, part in zip(bucket, average.split([self.parameters[it].numel() for it in bucket]), strict=True):
                self.parameters[it].grad.copy_(part.view_as(self.parameters[it]))
        self.optimizer.step()
        return torch.cat([it.detach().reshape(-1) for it in self.parameters])


def compare_with_reference(method, rank, size, steps, *, feedback=True, **options):
    watched = Watched(method, state_of(method, error_feedback=feedback), **options)
    reference = ReferenceTraining(method, size, feedback=feedback)
    layouts = []
    for step in range(steps):
        ours = watched.train(rank, [step])
        layouts.append(watched.buckets)
        expected = reference.step(step, watched.buckets)
        if method == "powersgd":
            torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-5)
        else:
            torch.testing.assert_close(ours, expected, rtol=0, atol=0)
    assert len(watched.buckets) >= 4
    assert watched.state.step == steps
    return layouts, watched


@pytest.mark.checked_numbers("DDP hooks for int8, top-k and PowerSGD", against="NumPy in one process")
@pytest.mark.parametrize("backend", ["gloo", "horovod"])
@on_torch_ranks("shm2")
def test_weights_of_every_step_at_two_ranks(backend):
    with process_group(backend) as (rank, size):
        answers = []
        for method in METHODS:
            layouts, watched = compare_with_reference(method, rank, size, STEPS)
            assert layouts[0] != layouts[1], "DDP has not rearranged its buckets"
            answers.append((layouts[-1], watched.weights().tolist()))  # equal on all ranks
        return answers


@on_torch_ranks(SHM3)
def test_weights_of_every_step_at_three_ranks():
    with process_group("gloo") as (rank, size):
        return [compare_with_reference(method, rank, size, STEPS)[1].weights().tolist() for method in METHODS]


@on_torch_ranks("shm2")
def test_without_error_feedback_and_in_views_of_buckets():
    with process_group("gloo") as (rank, size):
        for method in METHODS:
            _, watched = compare_with_reference(method, rank, size, 6, feedback=False, gradient_as_bucket_view=True)
            names = {name for it in watched.state.state_dict()["buckets"].values() for name in it["tensors"]}
            assert names == ({"q"} if method == "powersgd" else set())


@on_torch_ranks("one")
def test_one_rank():
    with process_group("gloo") as (rank, size):
        for method in METHODS:
            _, watched = compare_with_reference(method, rank, size, 5)
            direct = DistributedDataParallel(network(), bucket_cap_mb=0.001)
            direct.register_comm_hook(state := state_of(method), HOOKS[method])
            backward(direct, rank, 0)
            assert state.step == 1
            assert memory(state).keys() <= memory(watched.state).keys()


@on_torch_ranks("shm2")
def test_small_buckets_are_dense():
    with process_group("gloo") as (rank, _):
        plain = DistributedDataParallel(network(), bucket_cap_mb=0.001)
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
        for step in range(3):
            optimizer.zero_grad()
            backward(plain, rank, step)
            optimizer.step()
        expected = torch.cat([it.detach().reshape(-1) for it in plain.parameters()])
        for method in METHODS:
            assert torch.equal(Watched(method, state_of(method, min_bytes=65536)).train(rank, range(3)), expected)


def poison(watched, rank, bucket, value):
    """Spoil one value of a bucket's gradients on rank 1 in the next step. Return the handle that removes the hook."""

    def spoil(gradient):
        gradient = gradient.clone()
        gradient.view(-1)[-1] = value if rank == 1 else 0.25
        return gradient

    return list(watched.plain.parameters())[watched.buckets[bucket][0]].register_hook(spoil)


def memory(state):
    return {
        (index, name): tensor
        for index, bucket in state.state_dict()["buckets"].items()
        for name, tensor in bucket["tensors"].items()
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@on_torch_ranks(SHM3)
def test_one_bad_value_makes_its_bucket_nan_everywhere_and_keeps_the_memory(value):
    with process_group("gloo") as (rank, _):
        for method in METHODS:
            watched = Watched(method, state_of(method))
            watched.train(rank, range(5))
            before, bad = memory(watched.state), 2
            assert any(index == bad for index, _ in before)
            handle = poison(watched, rank, bad, value)
            watched.optimizer.zero_grad()
            backward(watched.ddp, rank, 5)
            handle.remove()
            for index, gradients in enumerate(watched.gradients()):
                assert (gradients.isnan() if index == bad else gradients.isfinite()).all(), (method, index)
            for (index, name), tensor in memory(watched.state).items():
                same = torch.equal(tensor, before[index, name])
                assert same or index != bad, (method, name)
            watched.train(rank, range(6, 8))
            assert watched.weights().isfinite().all()


@on_torch_ranks("shm2")
def test_a_loaded_state_continues_with_the_same_bits():
    with process_group("gloo") as (rank, _):
        for method in METHODS:
            # With this option DDP never rearranges its buckets.
            first = Watched(method, state_of(method), find_unused_parameters=True)
            first.train(rank, range(6))
            saved = [first.state.state_dict(), first.plain.state_dict(), first.optimizer.state_dict()]
            saved = torch.load(_file_of(saved))
            expected = first.train(rank, range(6, 12))
            second = Watched(method, state_of(method), find_unused_parameters=True)
            for part, content in zip((second.state, second.plain, second.optimizer), saved, strict=True):
                part.load_state_dict(content)
            assert torch.equal(second.train(rank, range(6, 12)), expected), method
            forgetful = Watched(method, state_of(method), find_unused_parameters=True)
            forgetful.plain.load_state_dict(saved[1])
            forgetful.optimizer.load_state_dict(saved[2])
            assert not torch.equal(forgetful.train(rank, range(6, 12)), expected), method


def _file_of(content):
    from io import BytesIO

    file = BytesIO()
    torch.save(content, file)
    file.seek(0)
    return file


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@on_torch_ranks("shm2")
def test_a_loaded_state_waits_for_the_final_buckets():
    log, lines = logging.getLogger("horovod"), Lines()
    log.addHandler(lines)
    level = log.level
    log.setLevel(logging.INFO)
    try:
        with process_group("gloo") as (rank, _):
            first = Watched("int8", state_of("int8"))
            first.train(rank, range(3))
            changed = [line for line in lines.lines if "has changed bucket" in line]
            assert changed
            assert all(line.endswith("dropping its residuals of int8") for line in changed)
            saved = first.state.state_dict()
            second = Watched("int8", state_of("int8"))
            second.state.load_state_dict(saved)
            assert memory(second.state).keys() == memory(first.state).keys()
            second.train(rank, [3])  # DDP starts with its initial buckets
            second.train(rank, [4])
            assert second.state._loaded == {}
            loaded = {index for index, it in saved["buckets"].items() if it["tensors"]}
            assert loaded == {*range(len(second.buckets))}
    finally:
        log.setLevel(level)
        log.removeHandler(lines)


@on_torch_ranks("shm2")
def test_half_types_are_exchanged_as_float32():
    with process_group("gloo") as (rank, _):
        answers = []
        for method in METHODS:
            watched = Watched(method, state_of(method), torch.bfloat16)
            for step in range(5):
                watched.optimizer.zero_grad()
                backward(watched.ddp, rank, step, torch.bfloat16)
                watched.optimizer.step()
            assert watched.weights().dtype == torch.bfloat16
            assert {tensor.dtype for tensor in memory(watched.state).values()} == {torch.float32}
            answers.append(watched.weights().tolist())
        return answers


@on_torch_ranks("shm2")
def test_what_is_refused():
    with process_group("gloo") as (rank, _):
        double = Watched("int8", state_of("int8"), torch.float64)
        with pytest.raises(TypeError, match="float32, float16 and bfloat16, not torch.float64"):
            backward(double.ddp, rank, 0, torch.float64)
        differing = Watched("powersgd", state_of("powersgd", warm_start=rank == 0))
        text = r"rank 0 has powersgd\(.*warm_start=True, step 0, rank 1 has .*warm_start=False, step 0"
        with pytest.raises(ValueError, match=text):
            backward(differing.ddp, rank, 0)
    with pytest.raises(ValueError, match="topk: ratio must be above 0"):
        ddp_hooks.TopKState(0)
    state = state_of("int8")
    with pytest.raises(ValueError, match="saved with topk.*this hook is int8"):
        state.load_state_dict(state_of("topk").state_dict())


@on_torch_ranks("shm2")
def test_a_process_group_of_some_ranks():
    with process_group("gloo") as (rank, _):
        alone = [dist.new_group([each]) for each in range(2)][rank]
        watched = Watched("int8", state_of("int8", process_group=alone), process_group=alone)
        watched.train(rank, range(3))
        reference = ReferenceTraining("int8", 1, feedback=True)
        assert watched.state.step == 3
        assert watched.weights().numel() == sum(it.numel() for it in reference.parameters)
        if rank == 0:  # the group `alone` has one rank, whose steps are rank 0's
            other = Watched("int8", state_of("int8", process_group=alone), process_group=alone)
            for step in range(3):
                other.train(0, [step])
                expected = reference.step(step, other.buckets)
            torch.testing.assert_close(watched.weights(), expected, rtol=0, atol=1e-6)


@pytest.mark.slow
@on_torch_ranks("shm2", limit_s=180)
def test_without_error_feedback_learning_is_visibly_worse():
    """Most gradients of this regression are small: without feedback, top-k never sends them."""

    def final_loss(rank, feedback):
        torch.manual_seed(0)
        model = torch.nn.Linear(400, 1, bias=False)
        scales = torch.logspace(0, -1, 400)
        truth = torch.randn(400, 1, generator=torch.Generator().manual_seed(9))
        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(
            ddp_hooks.TopKState(0.01, error_feedback=feedback, min_bytes=0), ddp_hooks.topk_hook
        )  # fmt: skip
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        for step in range(600):
            generator = torch.Generator().manual_seed(2 * step + rank)
            inputs = torch.randn(64, 400, generator=generator) * scales
            optimizer.zero_grad()
            loss = (ddp(inputs) - inputs @ truth).square().mean()
            loss.backward()
            optimizer.step()
        return ((model.weight.detach().T - truth) * scales[:, None]).square().sum().item()

    with process_group("gloo") as (rank, _):
        with_feedback, without = final_loss(rank, True), final_loss(rank, False)
        assert without > 1.5 * with_feedback, (with_feedback, without)
        return with_feedback, without
