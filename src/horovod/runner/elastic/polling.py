# SPDX-License-Identifier: Apache-2.0
"""Asks a user's program which hosts there are, again and again. A failure later on keeps the last good answer."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress

from horovod.common.settings_values import shown
from horovod.runner.elastic.driver import DISCOVER_HOSTS_FREQUENCY_SECS
from horovod.runner.hosts import HostInfo

_SCRIPT_LIMIT_S = 60.0
_MOST_OUTPUT = 1 << 20


class DiscoveryError(ValueError):
    """The script failed, or printed something else than hosts."""


def find_hosts(script: str, slots: int | None) -> dict[str, int]:
    """What the script prints: `host:slots`, or `host` alone if `slots` says how many."""
    try:
        done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, timeout=_SCRIPT_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DiscoveryError(f"--host-discovery-script {shown(script)}: {error}") from error
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip()[-500:]
        raise DiscoveryError(f"--host-discovery-script {shown(script)} ended with exit code {done.returncode}: {words}")
    return parse_hosts(done.stdout[:_MOST_OUTPUT].decode(errors="replace"), slots, script)


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
    """Calls `found` with every new answer, from a thread of its own; says each new problem once."""

    def __init__(
        self, find: Callable[[], dict[str, int]], found: Callable[[dict[str, int]], None], say: Callable[[str], None]
    ) -> None:
        self._find, self._found, self._say = find, found, say
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="horovod-discovery", daemon=True)

    def __enter__(self) -> Polling:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with suppress(RuntimeError):
            self._thread.join(DISCOVER_HOSTS_FREQUENCY_SECS)

    def _poll(self) -> None:
        problem, last = "", None
        while not self._over.wait(DISCOVER_HOSTS_FREQUENCY_SECS):
            try:
                hosts = self._find()
            except DiscoveryError as error:
                if str(error) != problem:
                    problem = str(error)
                    self._say(f"{problem}; the last good list of hosts is kept")
                continue
            problem = ""
            if hosts != last:
                last = hosts
                self._found(hosts)
