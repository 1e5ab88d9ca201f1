# SPDX-License-Identifier: Apache-2.0
"""Actor that holds the driver of an elastic job, its rendezvous and its placer.

It runs on the head node, because any other node may be taken away. It owns the workers, so that they end with it. The
process that called run() owns it, so that it ends with that process.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import ray

from horovod.common.joining.interfaces import interface_address
from horovod.common.rendezvous.server import Server
from horovod.launcher.elastic.discovery import HostDiscovery
from horovod.launcher.elastic.driving import Driver, silence_limit_s
from horovod.launcher.elastic.mail import Mail
from horovod.launcher.elastic.progress import told_by
from horovod.launcher.elastic.vocabulary import Discovered, Event, Limits, Listens, Ready, Tick, reported_by
from horovod.launcher.start.thread_failures import ThreadFailures
from horovod.launcher.start.worker_environment import rendezvous_environment
from horovod.ray.coordinator import meeting_limit, usable_secret
from horovod.ray.placing import RayPlacer, Task
from horovod.ray.utils import nics_to_env_var

_LOOK_S = 0.2
_DISCOVER_EVERY_S = 1.0


@dataclass(frozen=True)
class ElasticResult:
    """Result of an elastic job: `values` by rank in the last generation. `text` is empty if the job succeeded."""

    values: Sequence[Any]
    text: str = ""


class ElasticCoordinator:
    """Coordinator of one elastic job. Call `run` once."""

    def __init__(self, settings: Any, limits: Limits, discovery: HostDiscovery) -> None:
        self._settings = settings
        self._limits = limits
        self._discovery = discovery
        self._problem = ""
        self._has_found = False

    def __repr__(self) -> str:
        return "horovod coordinator"

    def run(self, task: Task) -> ElasticResult:
        nics = sorted(self._settings.nics or ())
        secret = usable_secret(self._settings.key)
        address = interface_address(nics[0]) if nics else str(ray.util.get_node_ip_address())
        over = threading.Event()
        mail: Mail[Event] = Mail()
        with (
            closing(mail),
            Server(
                address,
                secret=secret,
                on_ready=lambda birth, *lost: mail.put(Ready(birth, *lost)),
                on_progress=lambda birth, message: mail.put(told_by(birth, message)),
                on_listening=lambda birth: mail.put(Listens(birth)),
                on_report=lambda birth, message: mail.put(reported_by(birth, message)),
                on_slow_meeting=self._say,
            ) as server,
        ):
            variables = {
                **rendezvous_environment(address, server.port, secret),
                **nics_to_env_var(nics),
                "HOROVOD_GLOO_TIMEOUT_SECONDS": meeting_limit(self._settings),
            }
            placer = RayPlacer(replace(task, variables=variables), mail.put)
            limits = replace(self._limits, silence_s=silence_limit_s(os.environ))
            driver = Driver(limits, server, placer, self._say, verbose=True)
            watcher = threading.Thread(target=self._watch, args=(placer, mail, over), name="horovod-watch", daemon=True)

            def stop() -> None:
                driver.stop()
                mail.put(Tick())

            try:
                with ThreadFailures(stop, "coordinator") as thread_failures:
                    watcher.start()
                    outcome, problem = driver.run(mail), thread_failures.failure
            finally:
                over.set()
                watcher.join()
                placer.end_all()
        if problem is not None:
            return ElasticResult([], problem)
        if outcome.exit_code != 0:
            trace = placer.failures.get(outcome.worker if outcome.worker is not None else -1)
            trace = trace or next(iter(placer.failures.values()), "")
            return ElasticResult([], f"{outcome.text}\n{trace}".strip())
        members = [birth for birth in driver.state.members if birth in placer.results]
        return ElasticResult([placer.results[birth] for birth in members or sorted(placer.results)])

    def _watch(self, placer: RayPlacer, mail: Mail[Event], over: threading.Event) -> None:
        last: dict[str, int] | None = None
        next_look = 0.0
        while not over.is_set():
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + _DISCOVER_EVERY_S
                found = self._find_hosts()
                if found is not None and found != last:
                    last = found
                    mail.put(Discovered(dict(found)))
            placer.watch(_LOOK_S)

    def _find_hosts(self) -> dict[str, int] | None:
        try:
            found = self._discovery.find_available_hosts_and_slots()
        except Exception as error:  # raised by user code, or because Ray's head restarts; the next call may succeed
            if str(error) != self._problem:
                self._problem = str(error)
                remedy = "the last list is kept" if self._has_found else "discovery is tried again every second"
                self._say(f"hosts could not be discovered, {remedy}: {error}")
            return None
        self._problem, self._has_found = "", True
        return found

    @staticmethod
    def _say(text: str) -> None:
        print(text, flush=True)
