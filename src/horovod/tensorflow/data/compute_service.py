# SPDX-License-Identifier: Apache-2.0
"""tf.data's service for a training job: a compute job runs the workers, and the trainers send their datasets to it.

Dispatchers run in the compute job or beside the trainers (`dispatcher_side`); each has its own workers. Trainer r uses
dispatcher r % dispatchers.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import gc
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.launcher.compat.compute_service import ComputeClient

SIDES = ("compute", "training")
_FILE_PAUSE_S = 0.1


@dataclass(frozen=True)
class TfDataServiceConfig:
    """Addresses and settings that connect trainers and workers. Keep the file private, because it contains a secret."""

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Mapping[str, Sequence[tuple[str, int]]]
    key: bytes
    timeout: int = 60

    def __post_init__(self) -> None:
        if self.dispatcher_side not in SIDES:
            raise ValueError(f"dispatcher_side must be 'compute' or 'training', not {self.dispatcher_side!r}")

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        return ComputeClient(self.addresses, self.key, verbose)

    def to_dict(self) -> Mapping[str, Any]:
        return {**vars(self), "key": base64.b64encode(self.key).decode()}

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> TfDataServiceConfig:
        addresses = {
            nic: [(str(host), int(port)) for host, port in pairs] for nic, pairs in config["addresses"].items()
        }
        return TfDataServiceConfig(**{**config, "addresses": addresses, "key": base64.b64decode(config["key"])})

    def write(self, filename: str) -> None:
        """Write the file atomically, readable only by its owner."""
        partial = f"{filename}.{os.getpid()}"
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(self.to_dict(), file)
        os.replace(partial, filename)

    @staticmethod
    def read(filename: str, wait_for_file_creation: bool = False) -> TfDataServiceConfig:
        """Read the file; with `wait_for_file_creation`, wait for the compute job to write it."""
        while wait_for_file_creation and not os.path.exists(filename):
            time.sleep(_FILE_PAUSE_S)
        return TfDataServiceConfig.from_dict(json.loads(Path(filename).read_text(encoding="utf-8")))


@contextlib.contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """Provide the service inside the block; yield its address, for tf.data.experimental.service.distribute.

    The compute job ends when all trainers have left their blocks and their processes have ended.
    """
    trainers = hvd.size() if hvd.is_initialized() else rank + 1
    dispatcher_id = rank % compute_config.dispatchers
    client = compute_config.compute_client()
    server = None
    # Keep the connection until the process ends, because it tells the compute job that this process is alive. When
    # TensorFlow's iterators are deleted, they notify the service and would wait indefinitely if it had ended.
    _until_the_end.append(client)
    try:
        if compute_config.dispatcher_side == "training" and rank < compute_config.dispatchers:
            server, address = _start_dispatcher(client)
            client.register_dispatcher(rank, address)
        address = client.wait_for_dispatcher_registration(dispatcher_id, compute_config.timeout)
        client.wait_for_dispatcher_worker_registration(dispatcher_id, compute_config.timeout)
        yield f"grpc://{address}"
        gc.collect()
        client.leave(rank)
        if rank == 0 or server is not None:  # other trainers still need the workers, and a dispatcher in this process
            client.wait_for_leaving(trainers, compute_config.timeout)
    finally:
        if rank == 0:
            client.retire()
        if server is not None:
            _until_the_end.append(server)


_until_the_end: list[Any] = []
_open_services: dict[tuple[bytes, int], str] = {}
_until_exit = contextlib.ExitStack()
atexit.register(_until_exit.close)


def send_to_data_service(
    dataset: tf.data.Dataset,
    compute_config: TfDataServiceConfig,
    rank: int,
    size: int | None = None,
    processing_mode: str = "distributed_epoch",
    reuse_dataset: bool = False,
    round_robin: bool = False,
) -> tf.data.Dataset:
    """Return the dataset as computed by the compute job; the service stays until this process ends.

    Args:
        reuse_dataset: Share one pass over the data among all trainers.
        round_robin: Deal elements out to the trainers in turn. All trainers must run equally many steps.
        size: Number of trainers; required with `round_robin`.
    """
    if round_robin and size is None:
        raise ValueError("round_robin=True needs the number of trainers: pass size=hvd.size()")
    if (compute_config.key, rank) not in _open_services:
        address = _until_exit.enter_context(tf_data_service(compute_config, rank))
        _open_services[compute_config.key, rank] = address
    return dataset.apply(
        tf.data.experimental.service.distribute(
            processing_mode=processing_mode,
            service=_open_services[compute_config.key, rank],
            job_name="job" if reuse_dataset or round_robin else None,
            consumer_index=rank if round_robin else None,
            num_consumers=size if round_robin else None,
        )
    )


tf.data.Dataset.send_to_data_service = send_to_data_service  # Horovod's scripts call it as a method


def compute_worker_fn(compute_config: TfDataServiceConfig) -> None:
    """Run one rank of the compute job, a worker and on some ranks a dispatcher, until the trainers are done."""
    dispatcher_id, worker_id = divmod(hvd.rank(), compute_config.workers_per_dispatcher)
    client = compute_config.compute_client()
    servers: list[Any] = []
    try:
        if compute_config.dispatcher_side == "compute" and worker_id == 0:
            dispatcher, address = _start_dispatcher(client)
            servers.append(dispatcher)
            client.register_dispatcher(dispatcher_id, address)
        address = client.wait_for_dispatcher_registration(dispatcher_id, compute_config.timeout)
        servers.insert(0, _start_worker(client, address, compute_config.timeout))
        client.register_worker_for_dispatcher(dispatcher_id, worker_id)
        client.wait_for_shutdown()
    finally:
        client.close()
        for server in servers:
            _stop(server)


def _start_dispatcher(client: ComputeClient) -> tuple[Any, str]:
    server = tf.data.experimental.service.DispatchServer(
        tf.data.experimental.service.DispatcherConfig(port=0, protocol="grpc")
    )
    port = server.target.rpartition(":")[2]
    return server, f"{client.local_address}:{port}"


def _start_worker(client: ComputeClient, dispatcher_address: str, timeout_s: float) -> Any:
    config = tf.data.experimental.service.WorkerConfig(
        dispatcher_address=dispatcher_address,
        worker_address=f"{client.local_address}:%port%",
        port=0,
        protocol="grpc",
        heartbeat_interval_ms=1000,
        dispatcher_timeout_ms=int(timeout_s * 1000),
    )
    return tf.data.experimental.service.WorkerServer(config)


def _stop(server: Any) -> None:
    server._stop()  # there is no public method; otherwise servers stop only when Python deletes them
