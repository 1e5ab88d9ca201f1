# SPDX-License-Identifier: Apache-2.0
"""Use torch.distributed alone: rank 1 raises and takes some seconds to end; rank 0 waits in an all_reduce."""

import atexit
import json
import sys
import time

import torch
import torch.distributed as dist

linger_s = float(sys.argv[1])
dist.init_process_group("horovod")
rank = dist.get_rank()


def report(**found):
    print(json.dumps({"rank": rank, "at": time.time(), **found}), flush=True)


destroyed = dist.new_group([0, 1])  # kept after its destruction, as programs do
dist.all_reduce(torch.ones(2), group=destroyed)
dist.destroy_process_group(destroyed)
try:
    dist.all_reduce(torch.ones(2))  # the other rank may still be in it when rank 1 ends
    if rank == 1:
        atexit.register(time.sleep, linger_s)  # like a tracker that sends its last data
        report(way="torch.distributed alone")
        raise ValueError("boom")
    dist.all_reduce(torch.ones(2))
except dist.DistBackendError as error:
    report(error=str(error), lost=error.lost_rank)
    raise
