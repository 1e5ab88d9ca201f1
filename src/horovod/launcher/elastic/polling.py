# SPDX-License-Identifier: Apache-2.0
"""Repeated calls of a user's program that lists the hosts. If a later call fails, the last good answer stays valid."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from horovod.common.escaping import escaped
from horovod.common.readiness import is_readable
from horovod.common.settings_values import shown
from horovod.launcher.start.hosts import HostInfo

DISCOVER_HOSTS_FREQUENCY_SECS = 1.0
SCRIPT_LIMIT_S = 60.0
_END_S = 5.0  # time for a script to end after it has closed its output
_LOOK_S = 0.05  # interval for noticing the end of a script whose output another process holds open
_MOST_OUTPUT = 1 << 20
_LAST_WORDS = 500


class DiscoveryError(ValueError):
    """Error: the script failed, or printed something other than hosts."""


def find_hosts(script: str, slots: int | None) -> dict[str, int]:
    """Run the script and return its hosts: lines `host:slots`, or `host` alone if `slots` is given."""
    return Script(script, slots)()


class Script:
    """Callable that runs the user's script and returns the hosts.

    The script may be slow, fail, print without end, or leave processes behind.
    """

    def __init__(self, script: str, slots: int | None, limit_s: float = SCRIPT_LIMIT_S) -> None:
        self._script, self._slots, self._limit_s = script, slots, limit_s
        self._running: subprocess.Popen[bytes] | None = None
        self._is_over = False

    def __call__(self) -> dict[str, int]:
        with tempfile.TemporaryFile() as errors:
            try:
                code, text = self._run(errors)
            except OSError as error:
                raise self._error(f": {error}") from error
            if code != 0:
                errors.seek(max(0, errors.tell() - _LAST_WORDS))
                words = escaped(errors.read(_LAST_WORDS).decode(errors="replace").strip())
                raise self._error(f" ended with exit code {code}: {words}")
        return parse_hosts(text, self._slots, self._script)

    def stop(self) -> None:
        """Kill the script, if it runs, and its process group."""
        self._is_over = True
        running = self._running
        if running is not None:
            with suppress(OSError):
                os.killpg(running.pid, signal.SIGKILL)

    def _run(self, errors: IO[bytes]) -> tuple[int, str]:
        command = ["/bin/sh", "-c", self._script]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        ) as process:
            self._running = process
            try:
                text = self._read(process)
                return process.wait(_END_S), text.decode(errors="replace")
            except (DiscoveryError, subprocess.TimeoutExpired) as error:
                os.killpg(process.pid, signal.SIGKILL)
                raise error if isinstance(error, DiscoveryError) else self._error(" does not end") from None
            finally:
                self._running = None

    def _read(self, process: subprocess.Popen[bytes]) -> bytes:
        """Return all that the script prints.

        Processes that it leaves behind may hold its output open, so its end is checked too.
        """
        assert process.stdout is not None
        deadline = time.monotonic() + self._limit_s
        text = b""
        while not self._is_over and time.monotonic() < deadline:
            # check this before reading, because an empty pipe stays empty once the script has ended
            has_ended = process.poll() is not None
            wait_s = 0.0 if has_ended else min(_LOOK_S, deadline - time.monotonic())
            if is_readable(process.stdout, wait_s):
                piece = os.read(process.stdout.fileno(), 1 << 16)
                text += piece
                if len(text) > _MOST_OUTPUT:
                    raise self._error(f" printed more than {_MOST_OUTPUT} bytes")
                if piece:
                    continue
                return text
            if has_ended:
                return text
        raise self._error(f" has not ended after {self._limit_s:g} s")

    def _error(self, what: str) -> DiscoveryError:
        return DiscoveryError(f"--host-discovery-script {shown(self._script)}{what}")


def parse_hosts(text: str, slots: int | None, script: str = "script") -> dict[str, int]:
    hosts: dict[str, int] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        if ":" not in line and slots is None:
            raise DiscoveryError(
                f"--host-discovery-script {shown(script)} printed {shown(line)} without a number of slots: "
                "print host:slots, or set --slots-per-host"
            )
        try:
            host = HostInfo.from_string(line if ":" in line else f"{line}:{slots}")
        except ValueError as error:
            raise DiscoveryError(f"--host-discovery-script {shown(script)}: {error}") from None
        hosts[host.hostname] = host.slots
    return hosts


class Polling:
    """Thread that calls `found` with each new answer and reports each new problem once."""

    def __init__(
        self,
        find: Callable[[], dict[str, int]],
        found: Callable[[dict[str, int]], None],
        say: Callable[[str], None],
        known: dict[str, int] | None = None,
    ) -> None:
        """Create the thread. `known` is the answer that the job began with."""
        self._find, self._found, self._say, self._known = find, found, say, known
        self._over = threading.Event()
        self._reports_again = False
        self._thread = threading.Thread(target=self._poll, name="horovod-discovery", daemon=True)

    def __enter__(self) -> Polling:
        self._thread.start()
        return self

    def report_again(self) -> None:
        """Report the next answer even if it equals the last one."""
        self._reports_again = True

    def report_no_more(self) -> None:
        """Report nothing from now on.

        Call this before killing the script, so that its end is not shown as a problem.
        """
        self._over.set()

    def __exit__(self, *_: object) -> None:
        self.report_no_more()
        with suppress(RuntimeError):
            self._thread.join(DISCOVER_HOSTS_FREQUENCY_SECS)

    def _poll(self) -> None:
        problem, last = "", self._known
        while not self._over.wait(DISCOVER_HOSTS_FREQUENCY_SECS):
            try:
                hosts = self._find()
                if not hosts:
                    raise DiscoveryError("--host-discovery-script printed no hosts")
            except DiscoveryError as error:
                if str(error) != problem and not self._over.is_set():
                    problem = str(error)
                    remedy = "the last good list of hosts is kept" if last else "it is called again every second"
                    self._say(f"{problem}; {remedy}")
                continue
            problem = ""
            if hosts != last or self._reports_again:
                self._reports_again = False
                last = hosts
                self._found(hosts)
