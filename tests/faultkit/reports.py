# SPDX-License-Identifier: Apache-2.0
"""Reports of ranks to a test about events and their times: datagrams, so that a dead rank blocks no process.

Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from testkit.speed import patience

VARIABLE = "HOROVOD_TEST_REPORTS"

Report = dict[str, Any]
Found = TypeVar("Found")


def report(event: str, **details: Any) -> None:
    """Send a report; called by a rank."""
    message = {
        "event": event,
        "rank": int(os.environ.get("HOROVOD_RANK", "-1")),
        "pid": os.getpid(),
        "at": time.monotonic(),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(json.dumps(message | details).encode(), os.environ[VARIABLE])


class Reports:
    """Receiver of reports in the test, which keeps all of them."""

    def __init__(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="hvd-faults-")
        self.path = str(Path(self._directory) / "reports")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self.all: list[Report] = []

    def close(self) -> None:
        self._socket.close()
        shutil.rmtree(self._directory)

    def await_event(self, event: str, ranks: range | list[int], limit_s: float = 40) -> dict[int, Report]:
        """Return each rank's first report of this event; raise AssertionError if one does not come in time."""
        limit_s = patience(limit_s)
        give_up = time.monotonic() + limit_s
        while True:
            found = self.of(event)
            missing = [rank for rank in ranks if rank not in found]
            if not missing:
                return found
            left = give_up - time.monotonic()
            assert left > 0, f"no {event!r} from ranks {missing} within {limit_s} s; reported: {self.all}"
            self._socket.settimeout(left)
            try:
                self.all.append(json.loads(self._socket.recv(1 << 16)))
            except TimeoutError:
                pass

    def await_that(self, found: Callable[[list[Report]], Found | None], limit_s: float = 40) -> Found:
        """Return the result of `found(all reports)` once it is not None.

        Raise AssertionError if that takes too long.
        """
        limit_s = patience(limit_s)
        give_up = time.monotonic() + limit_s
        while (result := found(self.all)) is None:
            left = give_up - time.monotonic()
            assert left > 0, f"not reported within {limit_s} s; reported: {self.all}"
            self._socket.settimeout(left)
            with suppress(TimeoutError):
                self.all.append(json.loads(self._socket.recv(1 << 16)))
        return result

    def next(self, limit_s: float) -> Report | None:
        """Return the next report; None if there is none within the limit."""
        self._socket.settimeout(max(limit_s, 1e-3))
        try:
            entry: Report = json.loads(self._socket.recv(1 << 16))
        except TimeoutError:
            return None
        self.all.append(entry)
        return entry

    def of(self, event: str) -> dict[int, Report]:
        found: dict[int, Report] = {}
        for entry in self.all:
            if entry["event"] == event:
                found.setdefault(entry["rank"], entry)
        return found
