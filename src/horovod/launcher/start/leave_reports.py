# SPDX-License-Identifier: Apache-2.0
"""Reports of workers that are about to end because of an exception."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from horovod.common.leaving import printable


@dataclass(frozen=True)
class LeaveReport:
    """Report of one rank.

    Attributes:
        what: For example "raised ValueError: no such file".
        code: The expected exit code.
    """

    rank: int
    what: str
    code: int


def leave_in(message: Mapping[str, Any]) -> tuple[str, int]:
    """Return the reported exception and the expected exit code, sanitised because workers are not trusted.

    Raises:
        KeyError, TypeError: The message is no such report.
    """
    what, code = message["leaves"], message["code"]
    if not isinstance(what, str) or type(code) is not int:
        raise TypeError("a worker's report that it is leaving must hold a text and an exit code")
    return printable(what), code if 0 < code < 256 else 1


class LeaveReports:
    """Queue of reports. The rendezvous adds to it in its thread, and the job takes from it in its own."""

    def __init__(self) -> None:
        self._came: deque[LeaveReport] = deque()
        self._wake: Callable[[], object] = lambda: None

    def wake_by(self, wake: Callable[[], object]) -> None:
        """Set a function that is called in the rendezvous' thread when a report has come."""
        self._wake = wake

    def add(self, rank: int, message: dict[str, Any]) -> None:
        """Add the report of a worker of a fixed job. Ignore any other message."""
        with suppress(KeyError, TypeError):
            self._came.append(LeaveReport(rank, *leave_in(message)))
            self._wake()

    def take(self) -> list[LeaveReport]:
        """Return the reports that have come since the last call."""
        return [self._came.popleft() for _ in range(len(self._came))]
