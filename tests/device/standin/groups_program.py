# SPDX-License-Identifier: Apache-2.0
"""Program of each rank of test_standin_groups.py: process groups that overlap, whose operations NCCL launches."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nccl_counts import counted
from signs import Signs
from torch_places import begin, current, gpu, sharing

from horovod._engine import EngineError
from horovod.torch.distributed.errors import ProcessGroupError

sys.path.insert(0, str(Path(__file__).parents[1]))
from group_counters import told_by
from overlapping_groups import Group, overlapping, run_program

CPU = torch.device("cpu")


@contextmanager
def on_stream(stream: int) -> Iterator[None]:
    current.stream = stream
    yield
    current.stream = 0


def run_orders(seed: str) -> None:
    begin(timeout_s=15)
    groups = overlapping(CPU)
    streams = [gpu.stream(), gpu.stream(), 0]
    run_program(groups, int(seed), lambda dice: on_stream(dice.choice(streams)))
    for stream in streams[:2]:
        gpu.synchronize(stream)
        gpu.destroy(stream)
    assert counted("launches") > 50 or sharing > 1  # only one of the ranks that share a GPU launches
    dist.destroy_process_group()
    assert counted("live") == 0
    print("all in order", flush=True)


def wait_and_go_on(group: Group, work: Any) -> None:
    """Wait for two operations: one that was launched before the loss does not fail, but the next one does."""
    work.wait()
    group.all_reduce(10, 50)[0].wait()


def run_silence(expected: str) -> None:
    """Check that ranks exchange no messages for an operation once their group is set up, unless NCCL lacks it."""
    begin()
    size = dist.get_world_size()
    groups = [Group(list(range(size)), None, CPU), Group(list(range(size)), dist.new_group(), CPU)]
    for group in groups:
        work, check = group.all_reduce(1, 700)
        work.wait()
        check()
    dist.barrier()
    before = [told_by(group.group) for group in groups]
    started = []
    for turn in range(40):
        for group in groups:
            started += [getattr(group, kind)(turn, 3000) for kind in ("all_reduce", "all_gather", "broadcast")]
    for work, check in started:
        work.wait()
        check()
    after = [told_by(group.group) for group in groups]
    changes = [{name: now[name] - was[name] for name in ("prompt_batches", "control_messages")}
               for was, now in zip(before, after, strict=True)]  # fmt: skip
    if expected == "silent":
        assert changes == [{"prompt_batches": 120, "control_messages": 0}] * 2, changes
    else:
        assert all(it["prompt_batches"] == 0 and it["control_messages"] > 0 for it in changes), changes
    counters = after[0]["counters"]
    # NCCL does not report its bytes.
    assert counters["data_bytes_sent"] is counters["data_bytes_received"] is None, counters
    work, check = groups[1].another_way(3, 100)
    work.wait()
    check()
    assert told_by(groups[1].group)["control_messages"] > after[1]["control_messages"]
    dist.destroy_process_group()
    print("counted", flush=True)


def run_mismatch() -> None:
    """Check that ranks get an error for different sizes when they negotiate each operation."""
    begin()
    dist.all_reduce(torch.ones(5))
    with pytest.raises(ProcessGroupError, match="operation 2"):
        dist.all_reduce(torch.ones(5 + dist.get_rank()))
    print("told", flush=True)


def do_something_else(limit_s: float) -> None:
    """Wait until the default group has ended, while its engine continues."""
    default: Any = dist.group.WORLD
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        time.sleep(0.05)
        default._channel.world.let_wait(0, 0)


def keep_reducing(tensor: torch.Tensor, group: Any = None) -> None:
    """Reduce until an operation fails. One that was launched before the group ended does not fail, the next does."""
    for _ in range(1000):
        dist.all_reduce(tensor, group=group)


def run_absence() -> None:
    """Check that the time limit ends the group when the last rank omits an operation that the others launched."""
    begin(timeout_s=6)  # limit also for the time between the first and the last rank at the barrier
    tensor = torch.ones(500)
    for _ in range(3):
        dist.all_reduce(tensor)
    began = time.monotonic()  # before any rank launches the operation
    dist.barrier()
    if dist.get_rank() == dist.get_world_size() - 1:
        with pytest.raises(EngineError, match="the GPU is not done with it"):
            do_something_else(30)
        print(f"heard in {time.monotonic() - began:.1f} s", flush=True)
        return
    with pytest.raises(ProcessGroupError, match="was launched 6 s ago, and the GPU is not done with it"):
        keep_reducing(tensor)
    heard_s = time.monotonic() - began
    until = time.monotonic() + 30
    while counted("live") and time.monotonic() < until:  # a separate thread ends the communicators
        time.sleep(0.01)
    print(f"heard in {heard_s:.1f} s: {counted('live')} left", flush=True)


def run_departure(folder: str) -> None:
    """Let the last rank leave without calling an operation that all others launched, long before the time limit."""
    signs = Signs(folder)
    begin(timeout_s=100)
    tensor = torch.ones(500)
    dist.all_reduce(tensor)
    last = dist.get_world_size() - 1
    if dist.get_rank() == last:
        dist.destroy_process_group()
        print("left", flush=True)
        return
    began = time.monotonic()
    with pytest.raises(ProcessGroupError, match=f"rank {last} "):
        keep_reducing(tensor)
    print(f"heard in {time.monotonic() - began:.1f} s", flush=True)
    # The error names the rank that left first, so these ranks wait here until each of them has seen it.
    signs.show("heard")
    signs.wait_for("heard", range(last))
    with pytest.raises(ProcessGroupError):
        dist.all_reduce(tensor)
    dist.destroy_process_group()
    print(f"communicators left: {counted('live')}", flush=True)


def launch(tensor: torch.Tensor) -> None:
    """Start an operation, and wait until it is launched but not until the GPU is done."""
    launches = counted("launches")
    dist.all_reduce(tensor, async_op=True)
    default: Any = dist.group.WORLD
    while counted("launches") == launches and not has_ended(default):
        time.sleep(0.001)


def has_ended(group: Any) -> bool:
    """Return True if another rank has ended the group."""
    try:
        group._channel.world.let_wait(0, 0)
    except EngineError:
        return True
    return False


def run_late(late_s: str) -> None:
    """Let the last rank call the last operation late. All others have launched it, and leave."""
    begin(timeout_s=60)
    tensor = torch.ones(500)
    for _ in range(3):
        dist.all_reduce(tensor)
    dist.barrier()
    size = dist.get_world_size()
    if dist.get_rank() == size - 1:
        time.sleep(float(late_s))
    tensor.fill_(1)
    launch(tensor)
    dist.destroy_process_group()
    assert torch.all(tensor == size), tensor
    print("came in time", flush=True)


def run_nobody() -> None:
    """Leave after launching an operation that the last rank never calls, which ends soon after the group's limit."""
    begin(timeout_s=6)  # limit also for the time between the first and the last rank at the barrier
    tensor = torch.ones(500)
    for _ in range(3):
        dist.all_reduce(tensor)
    dist.barrier()
    if dist.get_rank() == dist.get_world_size() - 1:
        with pytest.raises(EngineError):
            do_something_else(30)
        print("heard", flush=True)
        return
    launch(tensor)
    began = time.monotonic()
    dist.destroy_process_group()
    print(f"left in {time.monotonic() - began:.1f} s: {counted('live')} left", flush=True)


def interrupt_while_leaving(group: Any) -> None:
    """Set an alarm once the group is being left, because an earlier alarm would not interrupt that."""
    while not group._channel.is_closed:
        time.sleep(0.001)
    signal.alarm(1)


def run_interrupted() -> None:
    """Interrupt rank 0 with Ctrl-C while it leaves after launching an operation that the other rank never calls."""
    begin(timeout_s=100)
    tensor = torch.ones(500)
    for _ in range(3):
        dist.all_reduce(tensor)
    dist.barrier()
    if dist.get_rank() == 1:
        with pytest.raises(EngineError, match=r"rank 0 .*in the middle of a collective"):
            do_something_else(30)
        print("heard", flush=True)
        return
    launch(tensor)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    threading.Thread(target=interrupt_while_leaving, args=[dist.group.WORLD], daemon=True).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        dist.destroy_process_group()
    print(f"left in {time.monotonic() - began:.1f} s: {counted('live')} left", flush=True)


def run_abort(folder: str) -> None:
    """Abort on rank 0 an operation that the last rank never calls. The abort does not wait for the time limit."""
    signs = Signs(folder)
    begin(timeout_s=100)
    tensor = torch.ones(500)
    for _ in range(3):
        dist.all_reduce(tensor)
    dist.barrier()
    default: Any = dist.group.WORLD
    last = dist.get_world_size() - 1
    if dist.get_rank() == last:
        with pytest.raises(EngineError, match=r"rank 0 .*in the middle of a collective"):
            do_something_else(30)
        print("heard", flush=True)
        return
    launch(tensor)
    signs.show("launched")
    if dist.get_rank() == 0:
        signs.wait_for("launched", range(last))
        began = time.monotonic()
        default.abort()
        print(f"gave up in {time.monotonic() - began:.1f} s: {counted('live')} left", flush=True)
    else:
        with pytest.raises(ProcessGroupError, match="rank 0 "):
            keep_reducing(tensor)
        print("heard", flush=True)


def run_frozen() -> None:
    """Stop rank 1 while operations of two groups are in flight."""
    begin()
    groups = [None, dist.new_group()]
    tensors = [torch.ones(5000) for _ in groups]
    for tensor, group in zip(tensors, groups, strict=True):
        dist.all_reduce(tensor, group=group)
    dist.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    began = time.monotonic()
    for tensor, group in zip(tensors, groups, strict=True):
        with pytest.raises(ProcessGroupError, match="rank 1 "):
            keep_reducing(tensor, group)
    print(f"heard in {time.monotonic() - began:.1f} s", flush=True)
    dist.destroy_process_group()
    print(f"communicators left: {counted('live')}", flush=True)


def run_fork() -> None:
    """Check that a forked child cannot use the parent's operations in flight and ends, while the parent continues."""
    begin()
    tensor = torch.ones(5000)
    dist.all_reduce(tensor)
    works = [dist.all_reduce(torch.ones(5000), async_op=True) for _ in range(5)]
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(tensor)
        except ProcessGroupError as error:
            os._exit(0 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for work in works:
        work.wait()
    dist.all_reduce(tensor)
    assert float(tensor[0]) == dist.get_world_size() ** 2
    print("went on", flush=True)  # the process ends without leaving the group


def run_loss(folder: str) -> None:
    """Kill rank 1 while groups have operations in flight. A group without it still works."""
    signs = Signs(folder)
    begin()
    everybody, pairs = Group([0, 1, 2], None, CPU), [[0, 1], [1, 2], [0, 2]]
    made = [Group(it, dist.new_group(it), CPU) for it in pairs]
    mine = [everybody, *(it for it in made if dist.get_rank() in it.members)]
    for group in mine:
        work, check = group.all_reduce(1, 5000)
        work.wait()
        check()
    dist.barrier()
    if dist.get_rank() == 1:
        current.stream = gpu.stream()
        stuck, launches = torch.zeros(1), counted("launches")
        gpu.copy(stuck.data_ptr(), stuck.data_ptr(), 4, current.stream, delay_s=100)
        works = [group.all_reduce(9, 5000) for group in mine]
        while counted("launches") == launches:
            time.sleep(0.001)
        signs.wait_for("called", [0, 2])
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    works = [(group, group.all_reduce(9, 5000)) for group in mine for _ in range(3)]
    signs.show("called")
    for group, (work, check) in works:
        if 1 in group.members:
            with pytest.raises(ProcessGroupError, match=f"rank {group.members.index(1)} "):
                wait_and_go_on(group, work)
        else:
            wait_and_go_on(group, work)
            check()
    print(f"heard in {time.monotonic() - began:.1f} s", flush=True)
    left = mine[-1]
    for turn in range(5):
        work, check = left.all_reduce(turn, 5000)
        work.wait()
        check()
    dist.destroy_process_group()
    print(f"communicators left: {counted('live')}", flush=True)


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {
        "orders": run_orders,
        "silence": run_silence,
        "mismatch": run_mismatch,
        "absence": run_absence,
        "departure": run_departure,
        "late": run_late,
        "nobody": run_nobody,
        "interrupted": run_interrupted,
        "abort": run_abort,
        "frozen": run_frozen,
        "fork": run_fork,
        "loss": run_loss,
    }
    programs[sys.argv[1]](*sys.argv[2:])
