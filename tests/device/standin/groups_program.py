# SPDX-License-Identifier: Apache-2.0
"""What each rank of test_standin_groups.py runs: process groups that overlap, whose operations NCCL launches."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_places import begin, counted, current, gpu

from horovod.torch.distributed.errors import ProcessGroupError

sys.path.insert(0, str(Path(__file__).parents[1]))
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
    assert counted("launches") > 50
    dist.destroy_process_group()
    assert counted("live") == 0
    print("all in order", flush=True)


def wait_and_go_on(group: Group, work: Any) -> None:
    """What was launched already when a rank was lost does not tell of it; what comes next does."""
    work.wait()
    group.all_reduce(10, 50)[0].wait()


def run_loss() -> None:
    """Rank 1 is killed while groups have operations under way. A group without it is used as before."""
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
        while counted("launches") == launches:  # then the others have launched too, or will
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    works = [(group, group.all_reduce(9, 5000)) for group in mine for _ in range(3)]
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
    programs: dict[str, Callable[..., None]] = {"orders": run_orders, "loss": run_loss}
    programs[sys.argv[1]](*sys.argv[2:])
