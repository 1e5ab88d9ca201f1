# SPDX-License-Identifier: Apache-2.0
"""ElasticDriver under Horovod's name, for programs that start the workers of an elastic job themselves.

    rendezvous = RendezvousServer()
    driver = ElasticDriver(rendezvous, HostDiscoveryScript("./discover.sh", 2), min_num_proc=2, max_num_proc=8)
    port = rendezvous.start(create_rendezvous_handler(driver))
    driver.start(4, create_worker)  # (place, events) -> (exit code, time)
    results = driver.get_results()
    driver.stop()
    rendezvous.stop()

Driver in driving.py makes all decisions, as in horovodrun's own jobs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from horovod.common import settings
from horovod.common.log import logger
from horovod.common.settings_table import MOST_RANKS
from horovod.launcher.compat.timeout import TimeoutException
from horovod.launcher.elastic.calling import CallingPlacer, CreateWorker
from horovod.launcher.elastic.discovery import DiscoveredHosts, HostDiscovery, HostManager
from horovod.launcher.elastic.driving import Driver, Outcome, silence_limit_s, timeout_s
from horovod.launcher.elastic.mail import Mail
from horovod.launcher.elastic.planning import Plan, PlannedRendezvous
from horovod.launcher.elastic.polling import DISCOVER_HOSTS_FREQUENCY_SECS as DISCOVER_HOSTS_FREQUENCY_SECS
from horovod.launcher.elastic.rendezvous import RendezvousHandler, RendezvousServer
from horovod.launcher.elastic.vocabulary import Discovered, Event, Limits, Ready, Tick
from horovod.launcher.elastic.watching import HostWatch
from horovod.launcher.start.hosts import SlotInfo
from horovod.launcher.start.limits import check_cooldown, check_number, check_reset_limit

ELASTIC_TIMEOUT_SECS = 600
_END_S = 10.0  # time for the caller's function to end its workers once the job is over


@dataclass(frozen=True)
class Results:
    """Results of a job.

    `worker_results` maps "host[slot]" to exit code and time. It has no entry for a worker that was lost and replaced,
    unless the job failed. `error_message` is None if the job succeeded.
    """

    error_message: str | None = None
    worker_results: Mapping[str, tuple[int, float]] = field(default_factory=dict)


class ResultsRecorder:
    """Results of a job, for which any thread can wait."""

    def __init__(self) -> None:
        self._is_complete = threading.Event()
        self._error_message: str | None = None
        self._results: dict[str, tuple[int, float]] = {}

    def set_error_message(self, error_message: str | None) -> None:
        self._error_message = error_message

    def add_result(self, key: str, value: tuple[int, float]) -> None:
        self._results[key] = value

    def complete(self) -> None:
        """Mark the results as complete."""
        self._is_complete.set()

    @property
    def is_complete(self) -> bool:
        return self._is_complete.is_set()

    def get_results(self) -> Results:
        """Wait for the end of the job and return its results."""
        self._is_complete.wait()
        return Results(self._error_message, dict(self._results))


class ElasticDriver:
    """Driver of an elastic job whose workers are started by the caller's function. Call `start` once.

    Args:
        rendezvous: A RendezvousServer. ElasticDriver starts it unless the caller has done that.
        discovery: The discovery of hosts for workers.
        min_num_proc: The fewest workers the job may run with.
        max_num_proc: The most workers it may have; None allows as many as there are slots.
        timeout: Seconds to wait for enough slots; None means HOROVOD_ELASTIC_TIMEOUT, or 600.
        reset_limit: How often the workers may form a new generation after the first; None means any number of times.
        cooldown_range: The shortest and longest time in seconds that a slot rests after a failure.
        verbose: Log the first generation too.
    """

    def __init__(
        self,
        rendezvous: Any,
        discovery: HostDiscovery,
        min_num_proc: int,
        max_num_proc: int | None,
        timeout: float | None = None,
        reset_limit: int | None = None,
        cooldown_range: tuple[int, int] | None = None,
        verbose: int = 0,
    ) -> None:
        self._limits = _limits(min_num_proc, max_num_proc, timeout, reset_limit, cooldown_range)
        self._rendezvous = rendezvous
        self._host_manager = HostManager(discovery, cooldown_range)
        self._verbose = bool(verbose)
        self._mail: Mail[Event] = Mail()
        self.rendezvous_handler = RendezvousHandler(self._mail)
        self._plan = Plan(getattr(rendezvous, "init", lambda plan: None))
        self._results = ResultsRecorder()
        self._watch = HostWatch(discovery, self._host_manager, lambda hosts: self._mail.put(_discovered(hosts)))
        self._driver: Driver | None = None
        self._placer: CallingPlacer | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._starts_rendezvous = False
        self._stopped = threading.Event()

    # The life of a job

    def wait_for_available_slots(self, min_num_proc: int, min_hosts: int = 1) -> DiscoveredHosts:
        """Return the hosts once they have enough slots. Raise TimeoutException if that takes too long."""
        self._watch.begin()
        if not self._watch.wait_for(min_num_proc, min_hosts, self._limits.timeout_s):
            hosts = self._host_manager.current_hosts
            raise TimeoutException(
                f"after {self._limits.timeout_s:g} s (timeout) {hosts.count_available_slots()} slots on "
                f"{len(hosts.available_hosts)} hosts are available, but {min_num_proc} slots on at least {min_hosts} "
                "hosts are needed: check that the host discovery finds them"
            )
        return self._host_manager.current_hosts

    def start(self, num_proc: int, create_worker_fn: CreateWorker) -> None:
        """Start `num_proc` workers or more, and keep the job going in a thread; return once they are started.

        Args:
            num_proc: How many slots to wait for.
            create_worker_fn: Called for each worker in a thread of its own, with its place (for create_slot_env_vars)
                and a list of events. It starts the worker, ends it once one of the events is set, and returns the
                worker's exit code and the time of its end.
        """
        if self._thread is not None:
            raise RuntimeError("ElasticDriver.start() was called already: make a new driver for another job")
        limits = _limits_for(num_proc, self._limits)
        if self._stopped.is_set():
            return
        variables = self._open_rendezvous()
        self.wait_for_available_slots(num_proc)
        self._placer = CallingPlacer(
            create_worker_fn, self._plan, variables, self._host_manager.get_host_event, self._mail.put
        )
        server = getattr(self._rendezvous, "server", None) if self._is_ours else None
        rendezvous = PlannedRendezvous(self._plan, server)
        driver = Driver(limits, rendezvous, self._placer, logger.info, verbose=self._verbose, shows_end=False)
        with self._lock:
            if not self._stopped.is_set():
                self._driver = driver
                self._thread = threading.Thread(target=self._run, args=(driver,), name="horovod-elastic", daemon=True)
                self._thread.start()
        if self._thread is None:  # stop() was called meanwhile, perhaps before there was a rendezvous to close
            self._close_rendezvous()
            return
        self._plan.await_starts(num_proc)

    def resume(self) -> None:
        """Let the driver look at the job now. It also looks by itself after each event."""
        self._mail.put(Tick())

    def stop(self, error_message: str | None = None) -> None:
        """End the job and its workers, and free its resources. Safe to call twice."""
        with self._lock:
            self._stopped.set()
            if not self._results.is_complete and error_message is not None:
                self._results.set_error_message(error_message)
        if self._driver is not None:
            self._driver.stop()
            self._mail.put(Tick())
        self._watch.end()
        if self._thread is None:
            self._results.complete()
            self._mail.close()
        elif self._thread is not threading.current_thread():
            self._thread.join(2 * _END_S)
        self._close_rendezvous()

    def _close_rendezvous(self) -> None:
        if self._starts_rendezvous:
            self._rendezvous.stop()

    def finished(self) -> bool:
        """Return True once the job is over."""
        return self._results.is_complete or self._stopped.is_set()

    def get_results(self) -> Results:
        """Wait for the end of the job and return its results."""
        return self._results.get_results()

    # Places of the workers

    def record_ready(self, host: str, slot: int) -> None:
        """Ask for a place in the next generation on behalf of a worker, and wait for the answer.

        Workers that call hvd.init() ask by themselves.
        """
        self._plan.await_place(host, slot, lambda birth: self._mail.put(Ready(birth)))

    def get_slot_info(self, host: str, slot: int) -> SlotInfo:
        """Return the place of the worker that was started in a slot. All its numbers are -1 if it has none."""
        return self._plan.place_in(host, slot)

    def has_rank_assignment(self, host: str, slot: int) -> bool:
        return self._plan.place_in(host, slot).rank >= 0

    def get_coordinator_info(self) -> SlotInfo | None:
        """Return the place of rank 0."""
        return next(iter(self._plan.in_order()), None)

    @property
    def host_assignments(self) -> dict[str, list[SlotInfo]]:
        found: dict[str, list[SlotInfo]] = {}
        for place in self._plan.in_order():
            found.setdefault(place.hostname, []).append(place)
        return found

    def world_size(self) -> int:
        return len(self._plan.in_order())

    def local_size(self, host: str) -> int:
        return len(self.host_assignments.get(host, []))

    # The driver's thread

    def _run(self, driver: Driver) -> None:
        assert self._placer is not None
        try:
            outcome = driver.run(self._mail)
        except Exception as error:  # raised by the caller's rendezvous; get_results() must not wait without end
            logger.exception("the elastic driver failed")
            outcome = Outcome(1, f"the elastic driver failed: {type(error).__name__}: {error}")
        self._plan.close()
        self._placer.end_all(_END_S)
        self._mail.close()
        self._record(driver, outcome)

    def _record(self, driver: Driver, outcome: Outcome) -> None:
        assert self._placer is not None
        is_good = outcome.exit_code == 0 and not self._stopped.is_set()
        with self._lock:
            for _, end in sorted(self._placer.results.items()):
                if end.code == 0 or not is_good:
                    self._results.add_result(end.name, (end.code, end.at))
            if outcome.text and not self._stopped.is_set():
                self._results.set_error_message(outcome.text)
            self._results.complete()

    @property
    def _is_ours(self) -> bool:
        return isinstance(self._rendezvous, RendezvousServer)

    def _open_rendezvous(self) -> dict[str, str]:
        """Start the rendezvous if needed, and return the variables that workers need to connect to it.

        The address is missing: the caller passes it to create_run_env_vars.
        """
        if not isinstance(self._rendezvous, RendezvousServer):
            return {}
        if self._rendezvous.server is None:
            self._rendezvous.start(self.rendezvous_handler)
            self._starts_rendezvous = True
        elif self._rendezvous.handler is not self.rendezvous_handler:
            raise ValueError(
                "the RendezvousServer was started without this driver: call "
                "rendezvous.start(create_rendezvous_handler(driver)), or leave it to ElasticDriver.start()"
            )
        server = self._rendezvous.server
        assert server is not None
        return {"HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.port), **self._rendezvous.variables()}


def _discovered(hosts: DiscoveredHosts) -> Discovered:
    return Discovered({host: hosts.get_slots(host) for host in hosts.host_assignment_order})


def _limits(
    low: int, high: int | None, timeout: float | None, reset_limit: int | None, cooldown: Sequence[float] | None
) -> Limits:
    """Return the limits of a job with num_proc set to `low`, because it is not known yet.

    Raise ValueError if one is bad.
    """
    check_number(low, "min_num_proc")
    most = MOST_RANKS if high is None else high
    check_number(most, "max_num_proc")
    check_reset_limit(reset_limit)
    check_cooldown(cooldown)
    if low > most:
        raise ValueError(f"min_num_proc {low} is larger than max_num_proc {most}")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout must be a positive number of seconds, not {timeout}")
    return Limits(
        num_proc=low,
        min_num_proc=low,
        max_num_proc=most,
        timeout_s=timeout_s(timeout, os.environ),
        reset_limit=reset_limit,
        cooldown=(float(cooldown[0]), float(cooldown[1])) if cooldown is not None else None,
        fixed_hosts=False,
        spares=int(settings.value_of("HOROVOD_SPARES", os.environ) or 0),
        progress_timeout_s=float(settings.value_of("HOROVOD_PROGRESS_TIMEOUT_SECONDS", os.environ) or 0),
        replace_stuck=bool(settings.value_of("HOROVOD_REPLACE_STUCK_WORKERS", os.environ)),
        silence_s=silence_limit_s(os.environ),
        probe_every_s=float(settings.value_of("HOROVOD_CUT_PROBE_SECONDS", os.environ) or 10),
    )


def _limits_for(num_proc: int, limits: Limits) -> Limits:
    if not limits.min_num_proc <= num_proc <= limits.max_num_proc:
        raise ValueError(
            f"min_num_proc {limits.min_num_proc}, num_proc {num_proc} and max_num_proc {limits.max_num_proc} must be "
            "in ascending order"
        )
    return replace(limits, num_proc=num_proc)
