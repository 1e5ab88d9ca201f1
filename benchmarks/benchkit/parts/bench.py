# SPDX-License-Identifier: Apache-2.0
"""Common code of the report's parts: the libraries' worlds, measurements in turn, progress, and the ledger."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchkit import machine
from benchkit.floor import Floor
from benchkit.hosts import NamespaceHosts
from benchkit.ledger import Ledger, Record, Sample
from benchkit.libraries import Gloo, Khorovod, Mpich, OpenMpi
from benchkit.measuring import Pace, Series, measure
from benchkit.problem import Problem
from benchkit.units import size_text, time_text
from benchkit.world import IDLE_LIMIT, World, WorldError

OURS = "khorovod"
_SMALL, _LARGE = 32 << 10, 64 << 20


@dataclass
class Bench:
    """Run of the report."""

    quick: bool
    ledger: Ledger
    openmpi_python: str
    mpich_python: str
    ranks: list[int]  # numbers of ranks in part `scaling`
    started: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        elapsed = int(time.monotonic() - self.started)
        print(f"[{elapsed // 60:2d}:{elapsed % 60:02d}] {text}", flush=True)

    def pace(self, size: int) -> Pace:
        if self.quick:
            return Pace(rounds=4, seconds=0.1, dirty=False, aligned=True)
        return Pace(rounds=6 if size >= _LARGE else 12, seconds=0.4, dirty=False, aligned=True)

    @contextmanager
    def alive(self, ranks: int) -> Iterator[dict[str, World]]:
        """Yield the worlds of all installed libraries, by name, with their ranks on this host; end them afterwards."""
        place = (ranks, machine.cores_for(ranks), "shm")
        worlds: list[World] = [Khorovod(*place), Gloo(*place), OpenMpi("openmpi", *place, self.openmpi_python)]
        with self.running([*worlds, Mpich("mpich", *place, self.mpich_python), Floor(*place)]) as found:
            yield found

    @contextmanager
    def alive_on(
        self, hosts: NamespaceHosts, ours: Mapping[str, Mapping[str, str]], peers: bool = True
    ) -> Iterator[dict[str, World]]:
        """Yield the worlds of the libraries on several hosts.

        `ours`: names of Khorovod's worlds, with their variables.
        """
        ranks = len(hosts.names) * hosts.neighbours
        place = (ranks, machine.pairs_for(ranks), "tcp")
        worlds: list[World] = [Khorovod(*place, name, extra) for name, extra in ours.items()]
        if peers:
            worlds += [Gloo(*place), OpenMpi("openmpi", *place, self.openmpi_python)]
        for world in worlds:
            world.hosts = hosts
        # The floor uses one rank on each host, which has the whole network; an exchange of more ranks could not be
        # faster.
        single = hosts.one_rank_each()
        floor = Floor(len(hosts.names), machine.pairs_for(len(hosts.names)), "tcp")
        floor.hosts = single
        with self.running([*worlds, floor]) as found:
            yield found

    @contextmanager
    def running(self, worlds: Sequence[World]) -> Iterator[dict[str, World]]:
        """Yield those of the worlds that can run here, by name."""
        started: dict[str, World] = {}
        try:
            for world in worlds:
                reason = world.try_start()
                if reason is None:
                    started[world.name] = world
                    if world.idle_share > IDLE_LIMIT:
                        self.say(f"WARNING: idle ranks of {world.name} take {world.idle_share:.0%} of a core")
                elif world.name == OURS:
                    raise WorldError(f"without our own engine there is nothing to compare: {reason}")
                else:
                    self.say(f"{world.name} is left out: {reason}")
            pinned = "pinned" if worlds[0].cores else "not pinned"
            self.say(f"{worlds[0].ranks} ranks, {pinned}: " + ", ".join(world.library for world in started.values()))
            yield started
        finally:
            for world in worlds:
                world.stop()

    def compare(self, part: str, case: Record, problem: Problem, series: Sequence[Series], pace: Pace) -> None:
        """Measure all series in turn, append the results to the ledger and print them."""
        done = measure(problem, series, pace, self.say)
        ours = [one.label for one in done if one.label.startswith(OURS)]
        samples = [Sample(one.label, one.world.library, one.rounds) for one in done]
        records = self.ledger.add(part, case, samples, ours)
        times = "  ".join(f"{record['way']} {time_text(record['median'])}" for record in records)
        tensors = f"{problem.tensors} x " if problem.tensors > 1 else ""
        where = f", {case['link']}" if "link" in case else ""
        self.say(
            f"{part}: {problem.op} {tensors}{size_text(problem.actual_bytes)}, {problem.ranks} ranks{where}: {times}"
        )


def usual_series(worlds: dict[str, World], problem: Problem) -> list[Series]:
    """Return one series for each library, and more for Khorovod and the floor.

    Larger allreduces are also measured on tensors in shared memory. Small messages are also measured by raw addresses,
    which separates the engine's share of the time from the Python API's.
    """
    shared = problem.op == "allreduce" and problem.tensors == 1 and problem.bytes > _SMALL
    address = problem.tensors == 1 and problem.bytes <= _SMALL
    series = []
    for name, world in worlds.items():
        series.append(Series(name, world, "numpy" if name == OURS else ""))
        if address and name == OURS:
            series.append(Series(f"{name}, address", world, "address"))
        if shared and name in (OURS, "floor"):
            series.append(Series(f"{name}, shared", world, "shared"))
    return series
