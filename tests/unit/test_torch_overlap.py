# SPDX-License-Identifier: Apache-2.0
"""When gradients are reduced during backward(): only if that does not take processor time from it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from horovod.common.process_sets import ProcessSet, global_process_set  # noqa: E402
from horovod.torch.gradients import overlap, reducer  # noqa: E402


@pytest.mark.parametrize(
    ("chosen", "bound_to", "of", "threads", "local_size", "size", "expected"),
    [
        (None, 2, 2, 1, 2, 2, False),  # two ranks share two processors, one thread each
        (None, 16, 16, 1, 2, 2, True),
        (None, 16, 16, 8, 2, 2, False),
        (None, 1, 16, 1, 2, 2, False),  # bound to one processor
        (None, 2, 16, 1, 2, 2, True),  # bound to two processors
        (None, 2, 2, 1, 2, 4, True),  # with several hosts, the network transfers data while the processor computes
        (True, 2, 2, 1, 2, 2, True),
        (False, 16, 16, 1, 2, 2, False),
    ],
)
def test_overlap_needs_a_spare_processor(
    monkeypatch: pytest.MonkeyPatch,
    chosen: bool | None,
    bound_to: int,
    of: int,
    threads: int,
    local_size: int,
    size: int,
    expected: bool,
) -> None:
    context = SimpleNamespace(
        settings={"HOROVOD_TORCH_OVERLAP": chosen}, topology=SimpleNamespace(local_size=local_size, size=size)
    )
    monkeypatch.setattr(overlap, "default_context", context)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(bound_to)))
    monkeypatch.setattr("os.cpu_count", lambda: of)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert overlap.overlaps() == (expected, chosen is not False)  # a GPU that is not shared needs no spare processor


class Gpus:
    """Context whose ranks each see some GPUs. `known` is 1 or 0 if they share GPUs or not, -1 before they know."""

    def __init__(self, local_size: int) -> None:
        self.topology = SimpleNamespace(local_size=local_size)
        self.known = -1

    def membership_of(self, process_set: ProcessSet) -> SimpleNamespace:
        if process_set is not global_process_set:
            raise ValueError("this rank is no member")
        return SimpleNamespace(world=SimpleNamespace(shares_gpus=lambda set_id: self.known), id=0)


@pytest.mark.parametrize(
    ("visible", "ranks", "known", "expected"),
    [
        (1, 4, -1, True),  # either all ranks share one GPU, or each rank has its own
        (4, 4, -1, False),
        (1, 4, 0, False),  # Slurm shows each rank its own GPU
        (1, 4, 1, True),
        (4, 4, 1, True),  # all ranks use the first GPU
    ],
)
def test_what_ranks_know_of_their_gpus_counts_more_than_numbers(
    monkeypatch: pytest.MonkeyPatch, visible: int, ranks: int, known: int, expected: bool
) -> None:
    context = Gpus(ranks)
    context.known = known
    monkeypatch.setattr(overlap, "default_context", context)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    assert overlap.gpus_are_shared(global_process_set) is expected
    assert overlap.gpus_are_shared(ProcessSet([1])) is False


def test_gradients_weigh_as_much_as_they_should_once_it_is_known_who_shares_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Use fake GPU parameters: their hooks are replaced once the ranks know that they do not share the GPU."""
    context = Gpus(4)
    monkeypatch.setattr(overlap, "default_context", context)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    watched = object.__new__(reducer.GradientReducer)
    made: list[int] = []
    parameter = SimpleNamespace(
        is_cuda=True, is_cpu=False, nbytes=4800, requires_grad=True, get_device=lambda: 0,
        register_post_accumulate_grad_hook=lambda hook: SimpleNamespace(remove=lambda: made.append(-1)),
    )  # fmt: skip
    gradient = SimpleNamespace(number=0, parameter=parameter, hook=None)
    watched._homes = None
    watched._weights = reducer.Weights(overlap.Overlap(on_host=False, on_gpu=True), global_process_set)
    watched._arrived = SimpleNamespace(hook=lambda number, nbytes, *rest: made.append(nbytes))

    class Gradients(list):
        def hooked(self, gradient: Any, hook: Any) -> None:
            gradient.hook = hook

    watched._gradients = Gradients([gradient])
    watched._hook(gradient)
    watched._weigh_again()
    assert made == [0]  # with a weight of 0, no reduction starts before the end of backward()
    context.known = 0
    watched._weigh_again()
    watched._weigh_again()
    assert made == [0, -1, 101]


@pytest.mark.parametrize(
    ("devices", "chosen", "expected"),
    [
        ("cpu cpu", (False, True), False),
        ("cpu cpu", (True, True), True),
        ("cuda cuda", (False, True), True),
        ("cpu cuda", (False, True), True),
        ("cuda cuda", (False, False), False),
    ],
)
def test_a_model_on_a_gpu_does_not_wait_for_a_free_processor(
    devices: str, chosen: tuple[bool, bool], expected: bool
) -> None:
    named: Any = [("", SimpleNamespace(is_cuda=device == "cuda")) for device in devices.split()]
    assert overlap.Overlap(*chosen).of(named) is expected
