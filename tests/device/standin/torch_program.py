# SPDX-License-Identifier: Apache-2.0
"""Program of each rank of test_standin_distributed.py: torch.distributed on tensors that count as a GPU's.

With `nccl` as an argument, they have to go through NCCL.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from nccl_counts import counted
from torch_places import begin, current, gpu

sys.path.insert(0, str(Path(__file__).parents[1]))
from distributed_checks import Checks, all_gather_single, same


def check_order() -> None:
    """Check that an operation waits for its input's stream, and that another stream that waits sees the result."""
    rank, size = dist.get_rank(), dist.get_world_size()
    streams = [gpu.stream(), gpu.stream()]
    for turn in range(6):
        count = (100, 50_000)[turn % 2]
        tensor, late = torch.full((count,), -1.0), torch.full((count,), float(rank + turn))
        current.stream = streams[turn % 2]
        gpu.copy(tensor.data_ptr(), late.data_ptr(), late.nbytes, current.stream, delay_s=0.02)
        gathered = torch.zeros(size * count)
        works = [
            dist.all_reduce(tensor, async_op=True),
            all_gather_single(gathered, late.clone(), async_op=True),
        ]
        current.stream = streams[(turn + 1) % 2]  # another stream waits
        for work in works:
            work.wait()
        same(tensor, torch.full((count,), float(sum(other + turn for other in range(size)))))
        same(gathered, torch.arange(float(size)).add(turn).repeat_interleave(count))
    current.stream = 0
    for stream in streams:
        gpu.synchronize(stream)
        gpu.destroy(stream)


def check_asking() -> None:
    """Check that is_completed() is true only when the device is done, not when the work is launched."""
    stream = current.stream = gpu.stream()
    tensor, late = torch.zeros(50_000), torch.ones(50_000)
    dist.all_reduce(tensor)
    gpu.copy(tensor.data_ptr(), late.data_ptr(), late.nbytes, stream, delay_s=0.4)
    work = dist.all_reduce(tensor, async_op=True)
    while not work.is_completed():
        pass
    same(tensor, torch.full((50_000,), float(dist.get_world_size())))
    current.stream = 0
    gpu.destroy(stream)


begin()
checks = Checks(torch.device("cpu"), large=40_000)
checks.all()
check_order()
check_asking()
if "nccl" in sys.argv:
    assert counted("launches") > 50
dist.destroy_process_group()
if "nccl" in sys.argv:
    assert counted("live") == 0
print("all checks passed", flush=True)
