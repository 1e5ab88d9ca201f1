# SPDX-License-Identifier: Apache-2.0
"""The compute job of a data service: `horovodrun -np 4 python -m horovod.tensorflow.data.compute_worker config.json`.

Every rank is a worker. Rank 0 writes the file by which trainers find them, and removes it in the end.
"""

from __future__ import annotations

import argparse
import contextlib
import os

import horovod.tensorflow as hvd
from horovod.launcher.compat import secret
from horovod.launcher.compat.compute_service import ComputeService
from horovod.tensorflow.data.compute_service import SIDES, TfDataServiceConfig, compute_worker_fn

parser = argparse.ArgumentParser(prog="python -m horovod.tensorflow.data.compute_worker", description=__doc__)
parser.add_argument("configfile", help="where to write how trainers find the service; on a disk that they share")
parser.add_argument("--dispatchers", type=int, default=1, metavar="N", help="dispatchers (default 1)")
parser.add_argument(
    "--dispatcher-side", choices=SIDES, default="compute", help="which job runs the dispatchers (default compute)"
)
parser.add_argument("--timeout", type=int, default=60, metavar="SECONDS", help="for the start (default 60)")
parsed_args: argparse.Namespace | None = None  # None unless this module is the running program


def main(dispatchers: int, dispatcher_side: str, configfile: str, timeout: int) -> None:
    """Run one rank of the compute job until the trainers are done."""
    hvd.init()
    if dispatchers < 1 or hvd.size() % dispatchers:
        raise ValueError(f"{hvd.size()} workers cannot be shared out evenly among {dispatchers} dispatchers")
    workers_per_dispatcher = hvd.size() // dispatchers
    service = config = None
    try:
        if hvd.rank() == 0:
            key = secret.make_secret_key()
            service = ComputeService(dispatchers, workers_per_dispatcher, key)
            config = TfDataServiceConfig(
                dispatchers, workers_per_dispatcher, dispatcher_side, service.addresses(), key, timeout
            )
            config.write(configfile)
        config = hvd.broadcast_object(config, name="TfDataServiceConfig")
        compute_worker_fn(config)
        # Wait for all ranks, because rank 0 has to keep its service until all of them have received the shutdown.
        hvd.allgather_object(None, name="compute_workers.done")
    finally:
        if service is not None:
            with contextlib.suppress(FileNotFoundError):
                os.remove(configfile)
            service.shutdown()


if __name__ == "__main__":
    parsed_args = parser.parse_args()
    main(parsed_args.dispatchers, parsed_args.dispatcher_side, parsed_args.configfile, parsed_args.timeout)
