# SPDX-License-Identifier: Apache-2.0
"""Allreduce over TCP between two hosts (network namespaces), beside a bare full-duplex exchange of as many bytes."""

from __future__ import annotations

from benchkit.hosts import NamespaceHosts
from benchkit.measuring import Series
from benchkit.parts.bench import OURS, Bench
from benchkit.problem import Problem

_MB = 1 << 20
_SIZES = (4, 32 << 10, 1 * _MB, 25 * _MB, 100 * _MB)
_QUICK_SIZES = (4, 1 * _MB, 25 * _MB)
_DOORS = {OURS: "numpy", "floor": "socket"}


def measure_network(bench: Bench) -> None:
    try:
        hosts = NamespaceHosts(2)
    except (RuntimeError, OSError) as error:
        bench.say(f"network: left out, no network namespaces here: {error}")
        bench.ledger.note("network", {"left out": True}, OURS, "", {"reason": "no network namespaces"})
        return
    try:
        with bench.alive(2, hosts) as worlds:
            series = [Series(name, world, _DOORS.get(name, "")) for name, world in worlds.items()]
            for size in _QUICK_SIZES if bench.quick else _SIZES:
                problem = Problem("allreduce", size, "float32", 2)
                bench.compare("network", {"bytes": size, "ranks": 2}, problem, series, bench.pace(size))
    finally:
        hosts.close()
