# SPDX-License-Identifier: Apache-2.0
"""Run a program with NCCL among ranks that share a GPU: `with_nccl.py PROGRAM ARGUMENT ...`.

NCCL refuses two ranks of one GPU unless it takes them for ranks of different hosts. With RANKS_PER_GPU=2 two ranks
share each "GPU": they use its memory, and one of them uses NCCL.
"""

import os
import runpy
import sys

os.environ |= {
    "HOROVOD_GPU_TRANSPORT": "nccl",
    "NCCL_HOSTID": f"host {int(os.environ['HOROVOD_RANK']) // int(os.environ.get('RANKS_PER_GPU', '1'))}",
    "NCCL_SOCKET_IFNAME": "lo",
}
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
