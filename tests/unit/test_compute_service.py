# SPDX-License-Identifier: Apache-2.0
"""The board of a data service: who waits for its end, and when that comes. No TensorFlow is needed for it."""

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError

import pytest

from horovod.runner.common.service.compute_service import ComputeClient, ComputeService

KEY = bytes(range(32))
AT_ONCE_S = 10.0  # else it would wait for ever


@pytest.fixture
def service() -> Iterator[ComputeService]:
    service = ComputeService(1, 1, KEY, nics=["lo"])
    yield service
    service.shutdown()


def waiting(service: ComputeService, threads: ThreadPoolExecutor) -> Future[None]:
    worker = ComputeClient(service.addresses(), KEY)

    def wait() -> None:
        with contextlib.closing(worker):
            worker.wait_for_shutdown()

    return threads.submit(wait)


def test_shutdown_ends_it_at_once_though_trainers_are_connected(service: ComputeService) -> None:
    trainers = [ComputeClient(service.addresses(), KEY) for _ in range(3)]
    with ThreadPoolExecutor() as threads:
        worker = waiting(service, threads)
        began = time.monotonic()
        trainers[0].shutdown()
        worker.result(AT_ONCE_S)
        assert time.monotonic() - began < AT_ONCE_S
    for trainer in trainers:
        trainer.close()


def test_a_service_that_retires_waits_for_its_trainers(service: ComputeService) -> None:
    trainers = [ComputeClient(service.addresses(), KEY) for _ in range(2)]
    with ThreadPoolExecutor() as threads:
        worker = waiting(service, threads)
        trainers[0].retire()
        with pytest.raises(TimeoutError):
            worker.result(0.5)
        for trainer in trainers:
            trainer.close()
        worker.result(2 * AT_ONCE_S)
