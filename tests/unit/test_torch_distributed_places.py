# SPDX-License-Identifier: Apache-2.0
"""Ordering of GPU streams by operations of the torch.distributed backend, with simulated streams."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from horovod.torch.distributed import places  # noqa: E402 - torch may be missing
from horovod.torch.distributed.flight import Flight  # noqa: E402

DEVICE = 3


class Stream:
    def __init__(self, address, log):
        self.cuda_stream = address
        self._log = log

    def record_event(self):
        self._log.append(("recorded", self.cuda_stream))
        return SimpleNamespace(of=self.cuda_stream, query=lambda: "is there" in self._log)

    def wait_event(self, event):
        self._log.append(("waits", self.cuda_stream, event.of))


class World:
    def __init__(self, log):
        self._log = log
        self.done = True

    def let_wait(self, device, stream):
        self._log.append(("let wait", device, stream))

    def wait(self, handle, limit_s):
        return self.done

    def release(self, handle):
        self._log.append(("released", handle))


@pytest.fixture
def log():
    return []


@pytest.fixture
def cuda(monkeypatch, log):
    """Simulate streams 10 and 20; `now` is the current stream."""
    state = SimpleNamespace(now=Stream(10, log), other=Stream(20, log), capturing=False)

    @contextmanager
    def entered(stream):
        before, state.now = state.now, stream
        yield
        state.now = before

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: state.now)
    monkeypatch.setattr(places, "current_stream", lambda device: state.now.cuda_stream)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state.capturing)
    monkeypatch.setattr(places, "_engines_stream", lambda device, stream: Stream(stream, log))
    return state


def flight_of(log, place, keep=(), finish=None):
    return Flight(SimpleNamespace(world=World(log)), [7], place, keep, finish, "")


def test_the_own_stream_comes_after_the_operation_and_so_does_who_waits(cuda, log):
    place = places.GpuPlace(DEVICE)
    assert (place.device, place.stream) == (DEVICE, 10)
    flight = flight_of(log, place)
    assert flight.wait(0.0)
    flight.land()
    assert log == [("let wait", DEVICE, 10)]
    log.clear()
    place.follow(World(log))
    assert log == [("let wait", DEVICE, 10)]  # the operation's own stream has nothing else to wait for
    log.clear()
    cuda.now = cuda.other
    place.follow(World(log))
    assert log == [("let wait", DEVICE, 20)]


def test_what_is_left_to_do_goes_to_the_own_stream_whoever_does_it(cuda, log):
    place = places.GpuPlace(DEVICE)
    own = cuda.now
    cuda.now = cuda.other  # the current stream of another thread, for example one that completes futures
    flight = flight_of(log, place, finish=lambda handles: log.append(("copied on", cuda.now.cuda_stream, handles)))
    flight.then(lambda: log.append("then more"), [])
    assert flight.wait(0.0)
    flight.land()
    assert log == [("let wait", DEVICE, 10), ("copied on", 10, [7]), "then more", ("recorded", 10)]
    log.clear()
    place.follow(World(log))
    assert log == [("let wait", DEVICE, 20), ("waits", 20, 10)]
    log.clear()
    cuda.now = own
    place.follow(World(log))
    assert log == [("let wait", DEVICE, 10)]


def test_an_operation_beside_the_own_stream_does_not_hold_that_up(cuda, log):
    place = places.GpuPlace(DEVICE)
    place.launches_on(77)
    assert place.stream == 10  # the input is produced on this stream
    flight = flight_of(log, place, finish=lambda handles: log.append(("copied on", cuda.now.cuda_stream)))
    flight.land()
    assert log == [("copied on", 77), ("recorded", 77)]
    log.clear()
    place.follow(World(log))  # a stream that follows the operation is ordered after it
    assert log == [("let wait", DEVICE, 10), ("waits", 10, 77)]
    log.clear()
    assert not place.is_done()
    assert log == [("recorded", 77)]


class OnGpu(torch.Tensor):
    is_cuda = True
    log: list[object]

    def record_stream(self, stream):
        self.log.append(("kept for", stream.cuda_stream))


def on_gpu(log):
    tensor = torch.ones(2).as_subclass(OnGpu)
    tensor.log = log
    return tensor


def test_memory_beside_the_own_stream_is_kept_unless_that_waits(cuda, log):
    for followed, current, kept in (
        (True, 10, []),
        (True, 20, [("kept for", 77)]),
        (False, 10, [("kept for", 77)]),
    ):
        cuda.now = Stream(10, log)
        place = places.GpuPlace(DEVICE)
        place.launches_on(77)
        flight = flight_of(log, place, keep=[on_gpu(log)])
        cuda.now = Stream(current, log)
        flight.release(followed)
        flight.release(followed)  # a second call has no effect
        assert log == [*kept, ("released", 7)], (followed, current)
        log.clear()


def test_memory_that_nobody_follows_is_kept_for_the_stream(cuda, log):
    tensor = on_gpu(log)
    flight = flight_of(log, places.GpuPlace(DEVICE), keep=([tensor, torch.ones(1)], None))
    assert flight.land_alone()
    assert log == [("let wait", DEVICE, 10), ("kept for", 10), ("released", 7)]
    log.clear()
    flight = flight_of(log, places.GpuPlace(DEVICE), keep=[tensor])
    flight.release(followed=True)
    assert log == [("released", 7)]


def test_the_gpu_is_done_when_its_stream_says_so(cuda, log):
    place = places.GpuPlace(DEVICE)
    assert not place.is_done()
    log.append("is there")
    assert place.is_done()
    assert log == [("recorded", 10), "is there"]  # a single event is recorded, however often is_done is called


def test_a_captured_stream_is_refused(cuda):
    cuda.capturing = True
    with pytest.raises(RuntimeError, match="cannot be captured in a CUDA graph"):
        places.GpuPlace(DEVICE)
    with pytest.raises(RuntimeError, match="cannot be captured in a CUDA graph"):
        places.await_gpu(World([]), [DEVICE])


def test_the_tensors_of_an_operation_lie_in_one_place():
    here, there = torch.ones(2), torch.ones(2, device="meta")
    assert places.place_of([here, here]) is places.HOST
    with pytest.raises(ValueError, match="must be on one device, but these are on cpu, meta"):
        places.place_of([here, there])
