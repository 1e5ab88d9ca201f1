# SPDX-License-Identifier: Apache-2.0
"""Name and devices of the torch.distributed backend `horovod`, without torch."""

NAME = "horovod"
DEVICES = ["cpu", "cuda"]
GROUP_ALONE = (
    "torch.distributed has a group of 1 process, but this job has {size} ranks: what uses that group (DDP, Accelerate, "
    "Lightning, ...) trains each rank alone. Call torch.distributed.init_process_group() without rank and world_size, "
    "and leave RANK, WORLD_SIZE and LOCAL_RANK to the launcher."
)
