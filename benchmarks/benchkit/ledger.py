# SPDX-License-Identifier: Apache-2.0
"""Results file of one kind of machine: JSON lines, which runs append, and their reader.

A run begins with a line about itself (`run`, `machine`, `quick`). Each line after it is one way in one case of one
part, with the id of its run. Times are in microseconds. `against` contains, for each of Khorovod's ways in that case,
how many times longer this way takes, with its 95 % interval.
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
    """Measurements of one way: seconds, by round. In each round, all samples of a case were measured in turn."""

    way: str
    library: str
    rounds: Sequence[Sequence[float]]
    more: Record = field(default_factory=dict)


class Ledger:
    """Writer that appends to the file of this kind of machine; every line is on disk when `add` returns."""

    def __init__(self, path: Path, about: Record) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._run = about["run"]
        self._write([about])

    def add(self, part: str, case: Record, samples: Sequence[Sample], ours: Sequence[str]) -> list[Record]:
        """Append a record for each sample; `ours` are the ways with which the others are compared."""
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
        """Append facts that are not times: memory, processor time of an idle rank, or why a part was left out."""
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
    """Results of one kind of machine: its runs by id, and the records of each case from the run that counts."""

    kind: str
    runs: dict[str, Record]
    cases: list[list[Record]]
    many_hosts: list[Record] = field(default_factory=list)  # records that benchmarks/many_hosts.py wrote

    def of(self, part: str, **wanted: Any) -> list[list[Record]]:
        """Return the cases of a part that have these values, in the order in which they were measured."""
        return [
            records
            for records in self.cases
            if records[0]["part"] == part and all(records[0]["case"].get(key) == wanted[key] for key in wanted)
        ]


def read(path: Path) -> Results:
    """Return the results; for each case, from the newest full run that has it, else from the newest quick run."""
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
    """Return the records of a file; an empty list if the file does not exist."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line]
