# SPDX-License-Identifier: Apache-2.0
"""Elastic training job (programs/counted.py) whose reports are checked as they arrive: the invariants of fault 34.

Only one generation runs at a time, its ranks have equal weights, no sample is lost or needlessly repeated, and the
survivors leak nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from testkit.families import is_alive

from faultkit.holdings import holdings
from faultkit.jobs import LaunchedJob, program
from faultkit.reports import Report

MEBIBYTE = 1 << 20
GLOBAL_BATCH, COMMIT_EVERY = 60, 3  # equal to those of programs/counted.py
_LOOK_AGAIN_S = 0.2
_CONNECTIONS_UNDER_WAY = 8
# Connections between ranks that have just exchanged descriptors of shared memory: up to two for each local peer.
_INTRODUCTIONS = 8
_MOST_GROWTH = 24 * MEBIBYTE


class Training(LaunchedJob):
    """Job that trains `epochs`; 0 trains until `finish`. The call that reads a bad report raises AssertionError."""

    def __init__(
        self,
        framework: str,
        folder: Path,
        size: int,
        flags: Sequence[str],
        *,
        epochs: int = 0,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self.pids: dict[int, int] = {}  # process ids by worker id
        self.generation = -1
        self.stepped: dict[int, dict[int, Report]] = {}  # by generation, then by worker id
        self.epochs: list[Report] = []
        self.done: list[Report] = []
        # Reports by worker id, sizes of the world and of the host, and rank.
        self._held: dict[tuple[int, ...], list[Report]] = {}
        self.meanwhile: Callable[[], None] = lambda: None  # called repeatedly while this object waits
        self._launcher_held: list[dict[str, int]] = []
        command = program("counted", framework, str(folder), str(epochs))
        super().__init__(command, size, flags, {"OMP_NUM_THREADS": "1", **(env or {})})

    # Reports

    def listen_until(self, moment: float, enough: Callable[[], object] = lambda: False) -> bool:
        """Process reports until this time, or until `enough` returns true; return True in the second case."""
        while not (found := bool(enough())) and (left := moment - time.monotonic()) > 0:
            entry = self.reports.next(min(left, _LOOK_AGAIN_S))
            self.meanwhile()
            if entry is not None:
                self._hear(entry)
        return found

    def await_that(self, what: str, enough: Callable[[], object], limit_s: float) -> None:
        began = time.monotonic()
        while not self.listen_until(min(began + limit_s, time.monotonic() + 1), enough):
            assert self.processes[0].poll() is None, f"the job ended before {what}\n{self.printed()}"
            late = time.monotonic() > began + limit_s
            assert not late, f"{what}: not within {limit_s} s\n{self.state()}\n{self.printed_by_all()}"

    def _hear(self, entry: Report) -> None:
        match entry["event"]:
            case "born":
                self.pids[entry["birth"]] = entry["pid"]
            case "stepped":
                self._hear_step(entry)
            case "epoch":
                self.epochs.append(entry)
                assert entry["missing"] == 0, f"samples were lost: {entry}"
                assert entry["extra"] < 6, f"samples were repeated beyond the padding of the last batch: {entry}"
                assert entry["equal"], f"ranks have different weights: {entry}"
            case "done":
                self.done.append(entry)

    def _hear_step(self, entry: Report) -> None:
        number = entry["generation"]
        assert number >= self.generation, f"a step of an old generation, in generation {self.generation}: {entry}"
        self.generation = number
        others = self.stepped.setdefault(number, {})
        for other in others.values():
            assert (entry["size"], entry["digest"]) == (other["size"], other["digest"]), f"{entry} but {other}"
            assert entry["rank"] != other["rank"], f"two workers have one rank: {entry} and {other}"
        others[entry["birth"]] = entry
        self._check_holdings(entry)
        if self.is_whole() and entry["size"] == self.size:
            self._check_launcher()

    def _check_holdings(self, entry: Report) -> None:
        """Compare with the second world in which this worker had an equal rank: the first world created what is kept.

        The rank matters, because the leader has a link to every host, but the others need none to each other.
        """
        place = (entry["birth"], entry["size"], entry["local_size"], entry["rank"])
        held = self._held.setdefault(place, [])
        held.append(entry)
        if len(held) > 2:
            details = f"now {entry['open']} {entry['mapped']}, then {held[1]['open']} {held[1]['mapped']}"
            who = f"worker {entry['birth']} in generation {entry['generation']} ({details})"
            self._check_growth(who, held[1]["holdings"], entry["holdings"], _INTRODUCTIONS)

    def _check_launcher(self) -> None:
        """Check the launcher, which runs all the time; it may hold a few connections that are about to end."""
        held = self._launcher_held
        held.append(holdings(self.processes[0].pid))
        if len(held) > 2:
            self._check_growth("the launcher", held[1], held[-1], _CONNECTIONS_UNDER_WAY)

    @staticmethod
    def _check_growth(who: str, before: dict[str, int], after: dict[str, int], slack: int) -> None:
        """Check that resources have not grown.

        `slack`: descriptors that may be open temporarily; a leak would exceed it.
        """
        assert after["resident"] < before["resident"] + _MOST_GROWTH, f"{who}: {before} -> {after}"
        assert after["descriptors"] <= before["descriptors"] + slack, f"{who}: {before} -> {after}"
        for what in ("threads", "mappings"):
            assert after[what] <= before[what], f"{who} has leaked {what}: {before} -> {after}"

    # Workers

    def alive(self) -> dict[int, psutil.Process]:
        """Return the processes of live workers that have reported, by worker id."""
        found = {}
        for birth, pid in self.pids.items():
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if is_alive(process):
                    found[birth] = process
        return found

    def newest(self) -> dict[int, Report]:
        """Return the workers of the current generation that have made a step."""
        return self.stepped.get(self.generation, {})

    def is_whole(self) -> bool:
        """Return True if every worker of the current generation has made a step."""
        workers = self.newest()
        return bool(workers) and len(workers) == next(iter(workers.values()))["size"]

    def state(self) -> str:
        sizes = {number: len(workers) for number, workers in list(self.stepped.items())[-3:]}
        return f"alive {sorted(self.alive())}, steps by generation {sizes}, {len(self.epochs)} epochs"

    # End of the job

    def finish(self, limit_s: float = 60) -> Report:
        """Make the workers end; return the report of one of them, which all others must equal."""
        (self._folder / "stop").touch()
        return self.run_out(limit_s)

    def run_out(self, limit_s: float) -> Report:
        """Wait until the job ends by itself; return the report of one worker, which all others must equal."""
        # Reports must be read, because workers block if the socket is full.
        self.listen_until(time.monotonic() + limit_s, lambda: self.processes[0].poll() is not None)
        assert self.wait(1) == [0], self.printed()
        self.listen_until(time.monotonic() + 5, lambda: len(self.done) >= 1)
        assert len({(one["epoch"], one["loss"], one["curve"], one["digest"]) for one in self.done}) == 1, self.done
        self._check_tries(self.done[0]["epoch"])
        return self.done[0]

    def _check_tries(self, epochs: int) -> None:
        """Check the samples that workers really computed, committed or not: all of them, and few of them repeatedly."""
        tried: Counter[tuple[str, str]] = Counter()
        for path in self._folder.glob("tries-*"):
            for line in path.read_text().splitlines():
                epoch, *indexes = line.split()
                if int(epoch) < epochs:  # steps of the next epoch may have been computed and discarded before the end
                    tried.update((epoch, index) for index in indexes)
        padding = sum(entry["extra"] for entry in {entry["epoch"]: entry for entry in self.epochs}.values())
        by_epoch = Counter(epoch for epoch, _ in tried)
        assert set(by_epoch) == {str(epoch) for epoch in range(epochs)}
        assert len(set(by_epoch.values())) == 1, by_epoch
        again = tried.total() - len(tried) - padding
        most = (self.generation + 1) * (COMMIT_EVERY + 1) * GLOBAL_BATCH
        assert again <= most, f"{again} samples were repeated in {self.generation + 1} generations, not {most} at most"
