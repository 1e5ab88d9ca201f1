# SPDX-License-Identifier: Apache-2.0
"""Placer that calls the caller's function for each worker, in a thread that lives as long as the worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horovod.common.log import logger
from horovod.launcher.elastic.places import Place
from horovod.launcher.elastic.planning import ElasticSlot, Plan
from horovod.launcher.elastic.vocabulary import Ended, Event, Slot
from horovod.launcher.start.processes import describe_exit

CreateWorker = Callable[[ElasticSlot, list[threading.Event]], tuple[int, float]]


@dataclass(frozen=True)
class WorkerEnd:
    """End of a worker. `name` is its host and slot, `at` the time at which the caller's function returned."""

    name: str
    code: int
    at: float


class CallingPlacer:
    """WorkerPlacer that calls `create_worker` for each worker.

    The function returns a worker's exit code and the time of its end. It ends the worker when one of its events is set:
    the job is over, the host is blacklisted, or the driver wants this worker to end.

    Args:
        create_worker: The function, called with the worker's place and the list of events.
        variables: Environment variables of all workers, in addition to their places.
        host_event: Returns the event of a host, by its name.
        put: Passes an event on to the driver.
    """

    def __init__(
        self,
        create_worker: CreateWorker,
        plan: Plan,
        variables: Mapping[str, str],
        host_event: Callable[[str], threading.Event],
        put: Callable[[Event], None],
    ) -> None:
        self._create_worker = create_worker
        self._plan = plan
        self._variables = variables
        self._host_event = host_event
        self._put = put
        self._shutdown = threading.Event()
        self._ends: dict[int, threading.Event] = {}
        self._threads: list[threading.Thread] = []
        self.results: dict[int, WorkerEnd] = {}  # by birth id

    def start(self, birth: int, slot: Slot, planned: Place) -> None:
        slot_info = self._plan.begin(birth, slot, planned, self._variables)
        self._ends[birth] = threading.Event()
        events = [self._shutdown, self._host_event(slot[0]), self._ends[birth]]
        thread = threading.Thread(target=self._work, args=(slot_info, events), name=f"worker-{birth}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def signal(self, birth: int, number: int) -> None:
        """Ask the caller's function to end a worker, whatever the signal."""
        if birth in self._ends:
            self._ends[birth].set()

    def end_all(self, limit_s: float) -> None:
        """Ask all workers to end, and wait until they have ended or the time is over."""
        self._shutdown.set()
        deadline = time.monotonic() + limit_s
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self, slot_info: ElasticSlot, events: list[threading.Event]) -> None:
        birth, where = slot_info.birth, f"{slot_info.hostname}[{slot_info.local_rank}]"
        try:
            code, at = _exit_of(self._create_worker(slot_info, events))
            how = describe_exit(code)
        # catch sys.exit() too: without an event the driver would wait for this worker indefinitely
        except BaseException as error:
            logger.exception("create_worker_fn failed for %s", where)
            code, at, how = 1, time.time(), f"create_worker_fn raised {type(error).__name__}: {error}"
        self.results[birth] = WorkerEnd(where, code, at)
        self._plan.end(birth)
        self._put(Ended(birth, code, how))


def _exit_of(returned: Any) -> tuple[int, float]:
    """Return exit code and time. Raise TypeError if the function returned anything else."""
    if not isinstance(returned, Sequence) or len(returned) != 2:
        raise TypeError(f"create_worker_fn must return (exit code, time), not {returned!r}")
    code, at = int(returned[0]), float(returned[1])
    return code if code >= 0 else 128 - code, at  # subprocess returns a signal as a negative number
