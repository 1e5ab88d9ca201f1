# SPDX-License-Identifier: Apache-2.0
"""Records that pytest writes for the summary: one JSON line for each test, in a folder that the suite names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER_VARIABLE = "HOROVOD_TEST_RECORDS"


@dataclass
class Record:
    """Record of one test. `ranks` counts the workers that it started, `retries` the tries before the last one."""

    test: str  # pytest's node id
    outcome: str  # passed, failed or skipped
    seconds: float
    ranks: int = 0
    retries: int = 0
    python: str = ""  # path of the interpreter relative to the repository, which identifies the environment

    @property
    def folder(self) -> str:
        return str(Path(self.test.partition("::")[0]).parent)


class RecordWriter:
    """Records file of one pytest process; nothing is written if the suite did not ask for records."""

    def __init__(self) -> None:
        folder = os.environ.get(FOLDER_VARIABLE)
        self._path = Path(folder) / f"{os.getpid()}.jsonl" if folder else None

    def plan(self, count: int) -> None:
        """Record how many tests this process is about to run."""
        self._write({"planned": count})

    def write(self, record: Record) -> None:
        self._write(asdict(record))

    def _write(self, line: dict[str, object]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def read_records(folder: Path) -> tuple[list[Record], int]:
    """Return the records of a folder, and the total number of planned tests."""
    records, planned = [], 0
    for line in _complete_lines(sorted(folder.glob("*.jsonl"))):
        entry = json.loads(line)
        if "planned" in entry:
            planned += entry["planned"]
        else:
            records.append(Record(**entry))
    return records, planned


def _complete_lines(files: Iterable[Path]) -> Iterable[str]:
    """Yield complete lines; a line without its end is still being written."""
    for file in files:
        yield from (line for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n"))
