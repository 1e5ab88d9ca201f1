# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts behind links of a given bandwidth, and a measurement of TCP over these links.

A token bucket (`tc tbf`) at the network interface of each host limits what the host sends. Needs root, `ip` and `tc`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from testkit.hosts import Network
from testkit.lifetimes import die_with_parent
from testkit.processes import Process, accounts, wait_for_all

from benchkit.hosts import NamespaceHosts

_PORT = 5_001
_QUEUE_MS = 50  # a bucket's queue holds what it can send in this time; the rest is dropped
_READY = "ready"
_RECEIVER = f"""
import socket, sys, time
with socket.create_server((sys.argv[1], {_PORT})) as server:
    print("{_READY}", flush=True)
    sender, _ = server.accept()
received = 0
begin = time.perf_counter()
while data := sender.recv(1 << 20):
    received += len(data)
print(8 * received / (time.perf_counter() - begin))
"""
_SENDER = f"""
import socket, sys, time
data = bytes(1 << 16)
with socket.create_connection((sys.argv[1], {_PORT})) as receiver:
    end = time.perf_counter() + float(sys.argv[2])
    while time.perf_counter() < end:
        receiver.sendall(data)
"""


@dataclass(frozen=True)
class Link:
    """Bandwidth of a host's network interface. `burst`: the size of the token bucket in tc's format."""

    name: str
    bits_per_s: float
    burst: str


LINKS = {link.name: link for link in (Link("100 Mbit/s", 1e8, "64kb"), Link("1 Gbit/s", 1e9, "256kb"))}


def limit(hosts: NamespaceHosts, link: Link) -> None:
    """Limit what every host sends to the link's bandwidth."""
    for name in hosts.names:
        words = ["qdisc", "replace", "dev", hosts.interface, "root", "tbf", "rate", f"{link.bits_per_s:.0f}bit"]
        words += ["burst", link.burst, "latency", f"{_QUEUE_MS}ms"]
        _run([*hosts.network.inside(name), "tc", *words])


def tcp_bits_per_s(network: Network, sender: str, receiver: str, seconds: float) -> float:
    """Return the data rate of one TCP stream between two hosts, in bits per second."""
    address = network.addresses[receiver]
    pipe = {"stdout": subprocess.PIPE, "text": True, "preexec_fn": die_with_parent}
    with Process([*network.inside(receiver), sys.executable, "-c", _RECEIVER, address], **pipe) as receiving:
        assert receiving.stdout is not None
        if receiving.stdout.readline().strip() != _READY:
            raise RuntimeError(f"the receiver on {receiver} did not start: {receiving.printed()}")
        sending = [*network.inside(sender), sys.executable, "-c", _SENDER, address, str(seconds)]
        with Process(sending, preexec_fn=die_with_parent) as other:
            codes = wait_for_all([other, receiving], seconds + 30)
            if any(codes):
                raise RuntimeError(f"the TCP stream from {sender} to {receiver} failed\n{accounts([other, receiving])}")
        return float(receiving.stdout.read())


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` failed: {done.stderr}")
