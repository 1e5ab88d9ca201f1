# SPDX-License-Identifier: Apache-2.0
"""Deadline with an error message."""

from __future__ import annotations

import time


class TimeoutException(Exception):  # noqa: N818 - the contract's name
    """Error: something did not happen in time."""


class Timeout:
    """Deadline. Its `message` may contain {timeout} and {activity}."""

    def __init__(self, timeout: float, message: str) -> None:
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._message = message

    def remaining(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def timed_out(self) -> bool:
        return time.monotonic() > self._deadline

    def check_time_out_for(self, activity: str) -> None:
        """Raise TimeoutException once the time is over."""
        if self.timed_out():
            raise TimeoutException(
                self._message.replace("{timeout}", f"{self._timeout:g}").replace("{activity}", activity)
            )
