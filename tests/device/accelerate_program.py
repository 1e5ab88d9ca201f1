# SPDX-License-Identifier: Apache-2.0
"""Program of each rank of test_accelerate_cuda.py: importing Accelerate must not initialise the GPU's driver.

`visible`: the rank sees a GPU, and its forked children can still use it. `hidden`: CUDA_VISIBLE_DEVICES hides the GPU.
"""

import os
import sys

import pytest
import torch
import torch.distributed as dist

from horovod import torch_backend

torch_backend.register()  # torch makes this call itself if the package is installed

import accelerate  # noqa: E402 - the watch over imports must be there before

VARIABLE = "ACCELERATE_USE_CPU"


class OnGpu(torch.utils.data.Dataset[float]):
    """Dataset of numbers that forked workers of a DataLoader compute on the GPU."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> float:
        return torch.full((3,), float(index), device="cuda").sum().item()


def computed_by_forked_workers() -> list[float]:
    loader = torch.utils.data.DataLoader(OnGpu(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    return [value for batch in loader for value in batch.tolist()]


def check_visible() -> None:
    assert VARIABLE not in os.environ, "a GPU is there"
    assert not torch.cuda.is_initialized()
    assert computed_by_forked_workers() == [3.0 * index for index in range(8)]
    assert torch.cuda.is_available()  # initialises the driver, which shows that the check above can fail
    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
        computed_by_forked_workers()


def check_hidden() -> None:
    assert os.environ[VARIABLE] == "true"
    accelerator = accelerate.Accelerator()
    assert (accelerator.num_processes, accelerator.device.type) == (2, "cpu"), accelerator.state
    total = accelerator.reduce(torch.ones(3), reduction="sum")
    assert total.tolist() == [2.0] * 3
    dist.destroy_process_group()


if __name__ == "__main__":
    {"visible": check_visible, "hidden": check_hidden}[sys.argv[1]]()
    print("all checks passed", flush=True)
