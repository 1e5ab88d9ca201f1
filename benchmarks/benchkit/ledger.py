# SPDX-License-Identifier: Apache-2.0
"""The results file of one kind of machine: JSON lines, appended as they come, and how they are read again.

A run begins with a line about itself (`run`, `machine`, `quick`); each line after it is one way of doing one case of
one part, and carries the id of its run. Times are in microseconds. `against` holds, for each of our ways in the same
case, how many times longer this way takes, with its 95 % interval.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchkit.summary import median_interval, ratio

Record = dict[str, Any]


@dataclass
class Sample:
    """What was measured of one way: seconds, by round. Rounds of all samples of a case were taken in turn."""

    way: str
    library: str
    rounds: Sequence[Sequence[float]]
    more: Record = field(default_factory=dict)


class Ledger:
    """Appends to the file of this kind of machine; every line is on disk when `add` returns."""

    def __init__(self, path: Path, about: Record) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._run = about["run"]
        self._write([about])

    def add(self, part: str, case: Record, samples: Sequence[Sample], ours: Sequence[str]) -> list[Record]:
        """`ours`: the ways that the others are compared with."""
        own = [sample for sample in samples if sample.way in ours]
        records = []
        for sample in samples:
            record = {"run": self._run, "part": part, "case": case, "way": sample.way, "library": sample.library}
            record |= _figures(sample.rounds) | sample.more
            others = [one for one in own if one is not sample]
            record["against"] = {one.way: asdict(ratio(one.rounds, sample.rounds)) for one in others}
            records.append(record)
        self._write(records)
        return records

    def note(self, part: str, case: Record, way: str, library: str, facts: Record) -> None:
        """Figures that are no times: memory, processor time of an idle rank; or why a part was left out."""
        self._write([{"run": self._run, "part": part, "case": case, "way": way, "library": library, **facts}])

    def _write(self, records: Iterable[Record]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)


def _figures(rounds: Sequence[Sequence[float]]) -> Record:
    times = np.concatenate([np.asarray(times) for times in rounds])
    low, high = median_interval(rounds)
    p10, median, p90, p99 = np.percentile(times, [10, 50, 90, 99])
    found = {"median": median, "low": low, "high": high, "p10": p10, "p90": p90, "p99": p99}
    exact = {name: float(f"{value * 1e6:.5g}") for name, value in found.items()}
    return {**exact, "rounds": len(rounds), "runs": len(times)}


@dataclass
class Results:
    """One kind of machine: its runs by id, and for each part and case the records of the run that counts."""

    kind: str
    runs: dict[str, Record]
    cases: list[list[Record]]
    many_hosts: list[Record] = field(default_factory=list)  # what benchmarks/many_hosts.py wrote there

    def of(self, part: str, **wanted: Any) -> list[list[Record]]:
        """The cases of a part that have these values, in the order in which they were measured."""
        return [
            records
            for records in self.cases
            if records[0]["part"] == part and all(records[0]["case"].get(key) == wanted[key] for key in wanted)
        ]


def read(path: Path) -> Results:
    """For each case, the newest full run that has it counts; without one, the newest quick run."""
    lines = _lines(path)
    runs = {line["run"]: line for line in lines if "machine" in line}
    found: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for line in lines:
        if "machine" not in line:
            key = (line["part"], json.dumps(line["case"], sort_keys=True))
            found.setdefault(key, {}).setdefault(line["run"], []).append(line)
    cases = [by_run[max(by_run, key=lambda run: (not runs[run]["quick"], run))] for by_run in found.values()]
    return Results(path.stem, runs, cases, _lines(path.parent / "many_hosts" / path.name))


def _lines(path: Path) -> list[Record]:
    """None of them if there is no such file."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line]
