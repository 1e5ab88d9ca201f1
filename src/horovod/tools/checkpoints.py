# SPDX-License-Identifier: Apache-2.0
"""`hvd checkpoints`: the checkpoints in a folder, the training of each, and whether it is intact.

Every file is read completely, but not unpickled.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod.common import checkpoint_file, checkpoint_folder
from horovod.common.checkpoint_file import BadCheckpointError

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Entry:
    """Checkpoint file.

    For a damaged file `commits` and `time` (seconds since the epoch) are None, and `problem` is set.
    """

    name: str
    lineage: str
    size: int
    commits: int | None = None
    time: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class Listing:
    """Files of a folder, newest first.

    `next_start` is the file from which a job resumes. `problem` says why there is none.
    """

    folder: str
    entries: list[Entry]
    next_start: str = ""
    problem: str = ""

    @property
    def is_intact(self) -> bool:
        return not self.problem and not any(entry.problem for entry in self.entries)


def examine(folder: Path) -> Listing:
    """Read all checkpoints of a folder. Raise OSError if it cannot be listed."""
    files = checkpoint_folder.list_files(folder)
    entries = [_examine(path) for path in files]
    if not files:
        return Listing(str(folder), [])
    try:
        usable = {path.name for path in checkpoint_folder.files_to_resume_from(files)}
    except ValueError as error:
        return Listing(str(folder), entries, problem=str(error))
    start = next((entry.name for entry in entries if entry.name in usable and not entry.problem), "")
    problem = "" if start else f"none of the {len(usable)} checkpoints of the newest training is intact"
    return Listing(str(folder), entries, start, problem)


def _examine(path: Path) -> Entry:
    lineage, size = checkpoint_folder.lineage_of(path), 0
    try:
        size = path.stat().st_size
        found = checkpoint_file.check(path)
    except (BadCheckpointError, OSError) as error:
        return Entry(path.name, lineage, size, problem=str(error))
    return Entry(path.name, found.commit.lineage, size, found.commit.commits, found.time)


def as_json(listing: Listing) -> dict[str, Any]:
    """Return the listing as a document for programs."""
    entries = [
        {
            "file": entry.name,
            "lineage": entry.lineage,
            "commits": entry.commits,
            "time": None if entry.time is None else _written(entry.time),
            "bytes": entry.size,
            "intact": not entry.problem,
            "problem": entry.problem,
        }
        for entry in listing.entries
    ]
    return {
        "folder": listing.folder,
        "checkpoints": entries,
        "next_start": listing.next_start or None,
        "problem": listing.problem,
    }


def as_page(listing: Listing) -> list[RenderableType]:
    """Return the listing as a page for people."""
    from rich.markup import escape
    from rich.table import Table

    if not listing.entries:
        return [escape(f"{listing.folder} holds no checkpoints: training starts from nothing")]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("file", no_wrap=True)
    table.add_column("commits", justify="right")
    table.add_column("written (UTC)", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("state")
    for entry in listing.entries:
        written = "" if entry.time is None else _written(entry.time)[:19].replace("T", " ")
        commits = "" if entry.commits is None else str(entry.commits)
        state = f"[red]{escape(entry.problem)}[/]" if entry.problem else "[green]intact[/]"
        table.add_row(escape(entry.name), commits, written, _size_text(entry.size), state)
    lineages = list(dict.fromkeys(entry.lineage for entry in listing.entries))
    counts = [f"{name} ({sum(entry.lineage == name for entry in listing.entries)})" for name in lineages]
    end = f"A job goes on from {listing.next_start}" if listing.next_start else f"No job can start: {listing.problem}"
    return [table, "", escape(f"lineages, with their files: {', '.join(counts)}"), escape(end)]


def _written(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat(timespec="seconds")


def _size_text(size: int) -> str:
    value, unit = float(size), "B"
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
