# SPDX-License-Identifier: Apache-2.0
"""`hvd timeline merge`: merge the timelines of several ranks onto one clock. Each rank keeps its own processes."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Event = dict[str, Any]

_START = "start_time_since_epoch_in_micros"


@dataclass(frozen=True)
class Timeline:
    """Events of one file. `start` is the time at which its clock was 0, in microseconds since the epoch."""

    path: Path
    events: list[Event]
    start: int
    rank: int | None


def merge(output: Path, files: Sequence[Path], *, force: bool = False) -> int:
    """Merge the timelines in `files` into `output`, and return the number of events.

    Raises:
        ValueError: A file is no timeline, or `output` exists and `force` is false. Usually the user forgot to name the
            output, so that the first timeline would be overwritten.
    """
    if output.exists() and not force:
        raise ValueError(f"{output} exists: name a new file for the result first, or pass --force to replace this one")
    merged = combine([load(path) for path in files])
    _write(output, merged)
    return len(merged)


def load(path: Path) -> Timeline:
    """Read a timeline. The end of its array may be missing, because its writer was killed."""
    text = path.read_text(encoding="utf-8").rstrip().rstrip(",")
    try:
        events = json.loads(text if text.endswith("]") else text + "]")
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise ValueError(f"{path} is not a timeline: it is not an array of events")
    for event in events:
        arguments = event.get("args")
        if event.get("ph") == "M" and isinstance(arguments, dict) and isinstance(arguments.get(_START), int):
            rank = arguments.get("rank")
            return Timeline(path, events, arguments[_START], rank if isinstance(rank, int) else None)
    raise ValueError(f"{path} is not a timeline: nothing in it says when it started ({_START})")


def combine(timelines: Sequence[Timeline]) -> list[Event]:
    """Return all events ordered by time, in µs since the start of the earliest timeline."""
    start = min(timeline.start for timeline in timelines)
    ranks = [index if timeline.rank is None else timeline.rank for index, timeline in enumerate(timelines)]
    if len(set(ranks)) < len(ranks):  # for example two parts of one rank's timeline
        ranks = list(range(len(timelines)))
    described: list[Event] = []
    timed: list[Event] = []
    first_pid = 0
    for rank, timeline in sorted(zip(ranks, timelines, strict=True), key=lambda item: item[0]):
        for event in timeline.events:
            moved = _move(event, first_pid, timeline.start - start, f"rank {rank}")
            if moved.get("name") == "process_name" and _START in moved["args"]:
                moved["args"][_START] = start
            (timed if "ts" in moved else described).append(moved)
        first_pid += 1 + max(int(event.get("pid", 0)) for event in timeline.events)
    timed.sort(key=lambda event: float(event["ts"]))  # stable, so that simultaneous events keep their nesting
    return described + timed


def _move(event: Event, first_pid: int, later: int, label: str) -> Event:
    moved = {**event, "pid": int(event.get("pid", 0)) + first_pid}
    if "ts" in event:
        moved["ts"] = round(float(event["ts"]) + later, 3)
    if event.get("ph") == "M":
        arguments = dict(event.get("args", {}))
        if event.get("name") == "process_name" and arguments.get("name") != label:
            arguments["name"] = f"{label}: {arguments.get('name', '')}"
        if event.get("name") == "process_sort_index":
            arguments["sort_index"] = moved["pid"]
        moved["args"] = arguments
    return moved


def _write(output: Path, events: Sequence[Event]) -> None:
    """Write the file atomically.

    So the file may be one of the inputs, and a full disk does not damage an existing file.
    """
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=output.parent, delete=False) as file:
        try:
            file.write("[\n" + ",\n".join(json.dumps(event) for event in events) + "\n]\n")
            file.close()
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(file.name, 0o666 & ~umask)
            os.replace(file.name, output)
        except BaseException:
            os.unlink(file.name)
            raise
