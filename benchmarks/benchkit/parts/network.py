# SPDX-License-Identifier: Apache-2.0
"""Measurements over TCP between simulated hosts: collectives, a training step, and slow links.

The five collectives run with one and with two ranks on each host, hierarchical and flat, and are compared with a bare
exchange of equally many bytes. The links of the last part are slow and lose packets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from testkit.slow_links import SlowLink

from benchkit.hosts import NamespaceHosts
from benchkit.measuring import Pace, Series
from benchkit.parts.bench import OURS, Bench
from benchkit.parts.training import note_training
from benchkit.problem import OPS, Problem
from benchkit.training import Setup
from benchkit.training_ways import QUICK, unavailable
from benchkit.world import World

_KB, _MB = 1 << 10, 1 << 20
_HOSTS = 2
_SIZES = (4, 1 * _KB, 32 * _KB, 256 * _KB, 1 * _MB, 4 * _MB, 25 * _MB, 100 * _MB)
_QUICK_SIZES = (4, 32 * _KB, 256 * _KB, 1 * _MB, 25 * _MB)
# The effect of each byte that crosses the network shows only if Khorovod's own choice is overruled in both directions.
_HIERARCHICAL = ("HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_HIERARCHICAL_ALLGATHER")
FLAT, LAYERED = f"{OURS}, flat", f"{OURS}, hierarchical"
STREAMS = 4
SEVERAL = f"{OURS}, {STREAMS} streams"
_STREAM_SIZES = (4, 1 * _MB, 25 * _MB)
# Delay in seconds for each direction, and the share of lost frames.
LINKS = {"plain": None, "20 ms": (0.02, 0.0), "20 ms, 0.1 % lost": (0.02, 0.001)}


def measure_network(bench: Bench) -> None:
    for action in (_collectives, _training, _links):
        for neighbours in (1, 2) if action is not _links else (1,):
            try:
                hosts = NamespaceHosts(_HOSTS, neighbours)
            except (RuntimeError, OSError) as error:
                bench.say(f"network: left out, no network namespaces here: {error}")
                bench.ledger.note("network", {"left out": True}, OURS, "", {"reason": "no network namespaces"})
                return
            try:
                action(bench, hosts)
            finally:
                hosts.close()


def _collectives(bench: Bench, hosts: NamespaceHosts) -> None:
    ranks = _HOSTS * hosts.neighbours
    with bench.alive_on(hosts, ways_of_ours(hosts.neighbours, bench.quick)) as worlds:
        for op in OPS:
            for size in _QUICK_SIZES if bench.quick else _SIZES:
                problem = Problem(op, size, "float32", ranks)
                taking_part = [name for name in worlds if name != "floor" or op == "allreduce"]
                series = [series_of(name, worlds[name], problem) for name in taking_part]
                case = {"op": op, "bytes": size, "hosts": _HOSTS, "ranks": ranks}
                bench.compare("network", case, problem, series, _pace(bench, size))


def ways_of_ours(neighbours: int, quick: bool) -> dict[str, dict[str, str]]:
    """Return the variables of Khorovod's worlds by name: its own choice, and if it has one, each alternative."""
    ways: dict[str, dict[str, str]] = {OURS: {}}
    if neighbours > 1:
        ways[FLAT] = dict.fromkeys(_HIERARCHICAL, "0")
        if not quick:
            ways[LAYERED] = dict.fromkeys(_HIERARCHICAL, "1")
    return ways


def series_of(name: str, world: World, problem: Problem) -> Series:
    if name == "floor":
        return Series(name, world, "socket", replace(problem, ranks=_HOSTS))
    return Series(name, world, "numpy" if name.startswith(OURS) else "")


def _pace(bench: Bench, size: int) -> Pace:
    pace = bench.pace(size)
    return pace if bench.quick else replace(pace, rounds=min(pace.rounds, 8))


def _training(bench: Bench, hosts: NamespaceHosts) -> None:
    """Measure steps with ResNet-50's tensors, and in a full run also with ResNet-50."""
    reason = unavailable()
    if reason is not None:
        bench.say(f"network: no training steps, {reason}")
        return
    ranks = _HOSTS * hosts.neighbours
    rounds, seconds = (6, 0.2) if bench.quick else (12, 1.0)
    for workload in ("tensors",) if bench.quick else ("tensors", "resnet50"):
        setup = Setup(ranks, list(QUICK), rounds=rounds, turn_seconds=seconds, hosts=hosts)
        case = {"workload": workload, "hosts": _HOSTS, "ranks": ranks}
        note_training(bench, "network training", case, setup)


def _links(bench: Bench, hosts: NamespaceHosts) -> None:
    """Compare one stream with several, on an unmodified link and on slow ones."""
    ways = {OURS: {"HOROVOD_TCP_STREAMS": "1"}, SEVERAL: {"HOROVOD_TCP_STREAMS": str(STREAMS)}}
    for link, slowness in LINKS.items():
        with _slowed(hosts, slowness), bench.alive_on(hosts, ways, peers=False) as worlds:
            for size in _STREAM_SIZES:
                problem = Problem("allreduce", size, "float32", _HOSTS)
                series = [series_of(name, world, problem) for name, world in worlds.items()]
                case = {"bytes": size, "hosts": _HOSTS, "ranks": _HOSTS, "link": link}
                bench.compare("network links", case, problem, series, bench.pace(size))


@contextmanager
def _slowed(hosts: NamespaceHosts, slowness: tuple[float, float] | None) -> Iterator[None]:
    if slowness is None:
        yield
        return
    delay_s, loss = slowness
    link = SlowLink(hosts.network, *hosts.names, delay_s, loss)
    try:
        yield
    finally:
        link.close()
