# SPDX-License-Identifier: Apache-2.0
"""Registry of a data service: registration, waiting and shutdown. The tests do not need TensorFlow."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError

import pytest
from testkit.speed import patience

from horovod.common.rendezvous.client import RendezvousError
from horovod.runner.common.service.compute_service import ComputeClient, ComputeService
from horovod.runner.common.util.timeout import TimeoutException

KEY = bytes(range(32))
AT_ONCE_S = 10.0  # limit for waits that succeed at once, to avoid an endless wait when they do not
SOON_S = 0.1


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
        worker.result(patience(AT_ONCE_S))
        assert time.monotonic() - began < patience(AT_ONCE_S)
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
        worker.result(patience(2 * AT_ONCE_S))


@pytest.fixture
def large() -> Iterator[ComputeService]:
    service = ComputeService(3, 2, KEY, nics=["lo"])
    yield service
    service.shutdown()


def client_of(service: ComputeService) -> contextlib.closing[ComputeClient]:
    return contextlib.closing(ComputeClient(service.addresses(), KEY))


def test_several_threads_use_one_client_at_once(large: ComputeService) -> None:
    """Call one client from nine threads that all wait for each other: no request or wait blocks another one."""
    names = [f"127.0.0.1:{port}" for port in range(3)]
    gate = threading.Barrier(9)

    def dispatcher(client: ComputeClient, number: int) -> str:
        gate.wait(patience(AT_ONCE_S))
        client.register_dispatcher(number, names[number])
        client.wait_for_dispatcher_worker_registration(number, patience(AT_ONCE_S))
        return client.wait_for_dispatcher_registration((number + 1) % 3, patience(AT_ONCE_S))

    def worker(client: ComputeClient, number: int) -> str:
        gate.wait(patience(AT_ONCE_S))
        address = client.wait_for_dispatcher_registration(number % 3, patience(AT_ONCE_S))
        client.register_worker_for_dispatcher(number % 3, number)
        return address

    with client_of(large) as client, ThreadPoolExecutor(9) as threads:
        dispatchers = [threads.submit(dispatcher, client, number) for number in range(3)]
        workers = [threads.submit(worker, client, number) for number in range(6)]
        assert [each.result(patience(3 * AT_ONCE_S)) for each in dispatchers] == [names[1], names[2], names[0]]
        assert [each.result(patience(3 * AT_ONCE_S)) for each in workers] == 2 * names


def test_threads_that_read_and_write_get_their_own_answers(large: ComputeService) -> None:
    """Write and read an address of several megabytes over one connection while other threads use it."""
    with client_of(large) as client, ThreadPoolExecutor(8) as threads:
        long = "x" * (3 << 20)
        client.register_dispatcher(0, long)

        def read(number: int) -> bool:
            client.register_worker_for_dispatcher(1, number)
            client.leave(number)
            return client.wait_for_dispatcher_registration(0, patience(AT_ONCE_S)) == long

        assert all(threads.map(read, range(16), timeout=patience(6 * AT_ONCE_S)))
        client.wait_for_leaving(16, patience(AT_ONCE_S))


def test_closing_a_client_ends_what_other_threads_wait_for(service: ComputeService) -> None:
    client = ComputeClient(service.addresses(), KEY)
    with ThreadPoolExecutor(2) as threads:
        shutdown = threads.submit(client.wait_for_shutdown)
        registration = threads.submit(client.wait_for_dispatcher_registration, 0, 100 * AT_ONCE_S)
        client.close()
        shutdown.result(patience(AT_ONCE_S))
        with pytest.raises(RendezvousError, match="this client of the data service is closed .*: make another one"):
            registration.result(patience(AT_ONCE_S))


def test_a_second_dispatcher_with_the_same_id_is_a_value_error(large: ComputeService) -> None:
    with client_of(large) as first, client_of(large) as second:
        first.register_dispatcher(1, "a:1")
        for client, address in ((second, "b:2"), (second, "a:1"), (first, "c:3")):
            with pytest.raises(ValueError, match=f"dispatcher 1 at {address}: .* is registered at a:1; give each"):
                client.register_dispatcher(1, address)
        assert second.wait_for_dispatcher_registration(1, patience(AT_ONCE_S)) == "a:1"
        second.register_dispatcher(2, "b:2")


def test_of_dispatchers_that_register_at_once_one_wins(large: ComputeService) -> None:
    gate = threading.Barrier(6)

    def register(number: int) -> bool:
        with client_of(large) as client:
            gate.wait(patience(AT_ONCE_S))
            try:
                client.register_dispatcher(0, f"h{number}:1")
            except ValueError:
                return False
            return client.wait_for_dispatcher_registration(0, patience(AT_ONCE_S)) == f"h{number}:1"

    with ThreadPoolExecutor(6) as threads:
        assert sum(threads.map(register, range(6), timeout=patience(3 * AT_ONCE_S))) == 1


def test_worker_ids_are_arbitrary(large: ComputeService) -> None:
    """Register ranks or any other integers: a repeated registration counts once, separately for each dispatcher."""
    with client_of(large) as client:
        for worker in (17, -3, 17):
            client.register_worker_for_dispatcher(2, worker)
        client.wait_for_dispatcher_worker_registration(2, patience(AT_ONCE_S))
        for worker in (17, 17):
            client.register_worker_for_dispatcher(0, worker)
        with pytest.raises(TimeoutException, match="2 workers of dispatcher 0, of which 1 came: is the compute job"):
            client.wait_for_dispatcher_worker_registration(0, SOON_S)


@pytest.mark.parametrize(
    ("wait", "what"),
    [
        (lambda it: it.wait_for_dispatcher_registration(2, SOON_S), "dispatcher 2"),
        (
            lambda it: it.wait_for_dispatcher_worker_registration(2, SOON_S),
            "2 workers of dispatcher 2, of which 0 came",
        ),
        (lambda it: it.wait_for_leaving(2, SOON_S), "the end of trainer 0"),
    ],
)
def test_waiting_too_long_is_a_timeout_exception(
    large: ComputeService, wait: Callable[[ComputeClient], object], what: str
) -> None:
    with (
        client_of(large) as client,
        pytest.raises(TimeoutException, match=f"^the data service waited 0.1 s for {what}: is the compute job running"),
    ):
        wait(client)


@pytest.mark.parametrize("unknown", [3, -1, 1000])
@pytest.mark.parametrize(
    "use",
    [
        lambda it, number: it.register_dispatcher(number, "a:1"),
        lambda it, number: it.wait_for_dispatcher_registration(number, SOON_S),
        lambda it, number: it.register_worker_for_dispatcher(number, 0),
        lambda it, number: it.wait_for_dispatcher_worker_registration(number, SOON_S),
    ],
)
def test_an_unknown_dispatcher_is_an_index_error(
    large: ComputeService, use: Callable[[ComputeClient, int], object], unknown: int
) -> None:
    with (
        client_of(large) as client,
        pytest.raises(IndexError, match=f"^dispatcher {unknown} is not one .* 3 dispatchers have the ids 0 to 2$"),
    ):
        use(client, unknown)
