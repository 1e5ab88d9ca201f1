# SPDX-License-Identifier: Apache-2.0
"""Metrics of a rank for Ray: they reach the Prometheus port of its node and Ray's dashboard."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from horovod.common.context import Context, default_context
from horovod.common.process_sets import ProcessSet

if TYPE_CHECKING:
    from horovod._engine import World

PERIOD_S = 2.0  # slightly less than the shortest interval at which Ray itself passes on metrics
# The tags include the process, because Ray keeps one figure for equal tags, and a rank may run in several processes in
# turn.
_TAGS = ("run", "rank", "host", "pid")
# Name in the engine, then our name and description. Ray adds the prefix "ray_" and, for counters, the suffix "_total".
_COUNTERS = {
    "collectives": ("horovod_collectives", "Collectives that moved tensors of this rank."),
    "bytes": ("horovod_bytes", "Bytes of the tensors that this rank passed to collectives."),
}
_SIZE = ("horovod_size", "Ranks in the world of this rank; 0 outside a world.")


class Publisher:
    """Publisher of a world's metrics: every PERIOD_S while the world exists, and once more at its end."""

    def __init__(self, run: str, context: Context = default_context) -> None:
        from ray.util.metrics import Counter, Gauge

        self._run = run
        self._context = context
        self._counters = {name: Counter(*what, tag_keys=_TAGS) for name, what in _COUNTERS.items()}
        self._size = Gauge(*_SIZE, tag_keys=_TAGS)
        self._lock = threading.Lock()
        self._world: World | None = None
        self._members = 0
        self._tags: dict[str, str] = {}
        self._published: Mapping[str, int] = {}
        self._lives = threading.Event()

    def start(self) -> None:
        """Publish until the process ends. Worlds may come and go."""
        self._context.observe(self)
        threading.Thread(target=self._run_on, name="horovod-metrics", daemon=True).start()

    # Interface of Observer

    def bound(self, process_set: ProcessSet, /) -> None:
        member = process_set.membership
        if process_set is not self._context.global_set or member is None:
            return
        with self._lock:
            self._world, self._published = member.world, {}
            where = {"host": socket.gethostname(), "pid": str(os.getpid())}
            self._tags = {"run": self._run, "rank": str(member.index), **where}
            self._members = member.size
            self._size.set(self._members, self._tags)
        self._lives.set()

    def unbound(self, process_set: ProcessSet, /) -> None:
        if process_set is not self._context.global_set:
            return
        self._lives.clear()
        self.publish()
        with self._lock:
            self._world = None
            self._size.set(0, self._tags)

    def publish(self) -> None:
        with self._lock:
            if self._world is None:
                return
            told: dict[str, Any] = json.loads(self._world.describe())
            for name, counter in self._counters.items():
                grown = told.get(name, 0) - self._published.get(name, 0)
                if grown > 0:
                    counter.inc(grown, self._tags)
            self._published = {name: told.get(name, 0) for name in self._counters}
            # Set it each time, because Ray drops gauges that are not set for a while.
            self._size.set(self._members, self._tags)

    def _run_on(self) -> None:
        while self._lives.wait():
            self.publish()
            threading.Event().wait(PERIOD_S)


_publisher: Publisher | None = None


def publish_for(run: str) -> None:
    """Start publishing in this worker of Ray. A second call has no effect."""
    global _publisher
    if _publisher is None:
        _publisher = Publisher(run)
        _publisher.start()
