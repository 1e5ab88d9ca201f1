# SPDX-License-Identifier: Apache-2.0
"""Stored results about compression: JSON lines for each kind of machine. A new run of a part replaces its old lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from testkit.places import BENCHMARKS

Record = dict[str, Any]
FOLDER = BENCHMARKS / "results" / "compression"
PARTS = ("slow links", "one host", "codecs")


def path_for(machine_kind: str) -> Path:
    """Return the file with the results of such machines."""
    return FOLDER / f"{machine_kind}.jsonl"


def read(path: Path) -> list[Record]:
    """Return the records of a file; an empty list if the file does not exist."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def store(path: Path, records: Sequence[Record]) -> None:
    """Write the records, and keep the lines of the file that belong to other parts."""
    new = {record["part"] for record in records}
    kept = [record for record in read(path) if record["part"] not in new]
    path.parent.mkdir(parents=True, exist_ok=True)
    ordered = sorted([*kept, *records], key=lambda record: PARTS.index(record["part"]))
    path.write_text("".join(json.dumps(record) + "\n" for record in ordered), encoding="utf-8")


def of_part(records: Iterable[Record], part: str, **case: Any) -> list[Record]:
    """Return the records of ways, by part and, for slow links, by link."""
    wanted = {"part": part} | case
    return [
        record
        for record in records
        if "way" in record and all(record.get(name) == value for name, value in wanted.items())
    ]


def about(records: Iterable[Record], part: str) -> Record | None:
    """Return the facts about the run of a part, or None if it was not measured."""
    return next((record["about"] for record in records if record["part"] == part and "about" in record), None)


def links(records: Iterable[Record]) -> dict[str, Record]:
    """Return the facts about each measured link, by name."""
    return {record["link"]: record for record in records if "tcp_bits_per_s" in record}
