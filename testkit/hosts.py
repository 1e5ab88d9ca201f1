# SPDX-License-Identifier: Apache-2.0
"""Hosts simulated by network namespaces, which a bridge in its own namespace connects. Needs root and `ip`."""

from __future__ import annotations

import subprocess
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horovod.launcher.start.hosts import SlotInfo

SWITCH = "switch"


class Network:
    """Network of hosts with the addresses 10.77.0.1, 10.77.0.2, ..., isolated from all other networks.

    With `ipv6` the addresses are fd77::1, fd77::2, ..., and there is no IPv4.
    """

    def __init__(self, names: list[str], *, ipv6: bool = False) -> None:
        prefix, base, self._after = ("fd77::", "x", ["/64", "nodad"]) if ipv6 else ("10.77.0.", "d", ["/24"])
        self._mark = uuid.uuid4().hex[:6]
        self._made: list[str] = []
        self.addresses = {name: f"{prefix}{number:{base}}" for number, name in enumerate(names, start=1)}
        try:
            self._build(names)
        except BaseException:
            self.close()
            raise

    def _build(self, names: list[str]) -> None:
        for name in [SWITCH, *names]:
            _ip("netns", "add", self.namespace(name))
            self._made.append(name)
            _ip("-n", self.namespace(name), "link", "set", "lo", "up")
        switch = self.namespace(SWITCH)
        _ip("-n", switch, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge0", "up")
        for name in names:
            host = self.namespace(name)
            port = self._port(name)
            _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
            _ip("-n", switch, "link", "set", port, "master", "bridge0", "up")
            length, *words = self._after
            _ip("-n", host, "address", "add", f"{self.addresses[name]}{length}", "dev", "eth0", *words)
            _ip("-n", host, "link", "set", "eth0", "up")

    def inside(self, name: str) -> list[str]:
        """Return the prefix that makes a command run on that host."""
        return ["ip", "netns", "exec", self.namespace(name)]

    def place(self, slot: SlotInfo) -> list[str]:
        return self.inside(slot.hostname)

    def cut(self, name: str) -> None:
        """Disconnect the host from the switch: packets vanish, no connection is closed or reset."""
        _ip("-n", self.namespace(SWITCH), "link", "set", self._port(name), "down")

    def mend(self, name: str) -> None:
        """Reconnect a host that `cut` has disconnected."""
        _ip("-n", self.namespace(SWITCH), "link", "set", self._port(name), "up")

    def cut_between(self, *names: str) -> None:
        """Make the switch drop what these hosts send to each other; all other hosts still reach them."""
        for name in names:
            self._isolate(name, "on")

    def mend_between(self, *names: str) -> None:
        for name in names:
            self._isolate(name, "off")

    def cut_way(self, sender: str, receiver: str, port: int | None = None) -> None:
        """Drop what one host sends to another, or to one of its TCP ports."""
        _ip("-n", self.namespace(sender), "rule", "add", *self._way(receiver, port))

    def mend_way(self, sender: str, receiver: str, port: int | None = None) -> None:
        _ip("-n", self.namespace(sender), "rule", "delete", *self._way(receiver, port))

    def _way(self, receiver: str, port: int | None) -> list[str]:
        only = ["ipproto", "tcp", "dport", str(port)] if port is not None else []
        return ["to", self.addresses[receiver], *only, "blackhole"]

    def _isolate(self, name: str, state: str) -> None:
        _ip("-n", self.namespace(SWITCH), "link", "set", self._port(name), "type", "bridge_slave", "isolated", state)

    def inside_switch(self) -> list[str]:
        return self.inside(SWITCH)

    def unplug(self, name: str) -> str:
        """Remove the host from the bridge, so that another program can use its link; return its port in the switch."""
        _ip("-n", self.namespace(SWITCH), "link", "set", self._port(name), "nomaster")
        return self._port(name)

    def plug_in(self, name: str) -> None:
        _ip("-n", self.namespace(SWITCH), "link", "set", self._port(name), "master", "bridge0")

    def close(self) -> None:
        while self._made:
            _ip("netns", "delete", self.namespace(self._made.pop()))

    def namespace(self, name: str) -> str:
        return f"hvd-{self._mark}-{name}"

    def _port(self, name: str) -> str:
        return f"port-{name}"


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"`ip {' '.join(words)}` failed (root and network namespaces are needed): {done.stderr}")
