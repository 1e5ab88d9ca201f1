# SPDX-License-Identifier: Apache-2.0
"""End of operations, with a scripted engine: exception classes, and buffers that outlive an interrupted wait."""

from typing import Any

import pytest

from horovod._engine import EngineError
from horovod.common.exceptions import HorovodInternalError, HorovodMismatchError
from horovod.common.handles import HandleTable, Pending


class ScriptedWorld:
    """Stand-in for an engine world: each wait raises the next failure, then waits succeed."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.released: list[int] = []

    def wait(self, handle: int) -> None:
        if self.failures:
            raise self.failures.pop(0)

    def finish(self, handle: int) -> None:
        self.wait(handle)
        self.release(handle)

    def poll(self, handle: int) -> bool:
        return not self.failures

    def release(self, handle: int) -> None:
        self.released.append(handle)


def pending(world: Any) -> Pending:
    return Pending(world, 7, "allreduce.x", keep="input", output="output")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (2, ValueError),
        (3, HorovodMismatchError),
        (4, HorovodInternalError),
        (5, NotImplementedError),
        (6, HorovodInternalError),
    ],
)
def test_engine_errors_become_the_contract_s_classes(code: int, expected: type[Exception]) -> None:
    world = ScriptedWorld(EngineError(code, "what happened", -1))
    with pytest.raises(expected, match="what happened") as caught:
        pending(world).wait()
    assert type(caught.value) is expected
    assert world.released == [7]


def test_lost_rank_and_operation_travel_as_fields() -> None:
    with pytest.raises(HorovodInternalError) as caught:
        pending(ScriptedWorld(EngineError(4, "rank 3 died", 3))).wait()
    assert (caught.value.lost_rank, caught.value.operation) == (3, "allreduce.x")


def test_failed_handle_is_spent() -> None:
    table = HandleTable()
    handle = table.add(pending(ScriptedWorld(EngineError(4, "gone", -1))))
    with pytest.raises(HorovodInternalError):
        table.synchronize(handle)
    assert table.synchronize(handle) is None


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), TimeoutError("by a signal handler")])
def test_interrupted_synchronize_can_be_repeated(interruption: BaseException) -> None:
    table = HandleTable()
    world = ScriptedWorld(interruption)
    handle = table.add(pending(world))
    with pytest.raises(type(interruption)):
        table.synchronize(handle)
    assert world.released == []
    assert table.synchronize(handle) == "output"


def test_interrupted_blocking_call_keeps_its_buffers() -> None:
    table = HandleTable()
    interrupted = pending(ScriptedWorld(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        table.finish(interrupted)
    assert interrupted in table._pending.values()


def test_unknown_handles() -> None:
    table = HandleTable()
    assert table.synchronize(12) is None
    with pytest.raises(ValueError, match="12"):
        table.poll(12)
