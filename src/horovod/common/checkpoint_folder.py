# SPDX-License-Identifier: Apache-2.0
"""Folders of checkpoints: names of files, which files belong together, and from which one a training resumes.

A name holds a number, which grows with each file, and the lineage of the training. So two trainings that write to one
folder never write to one file. Files in format 1 have no lineage in their names.
"""

from __future__ import annotations

import itertools
import os
import re
from contextlib import suppress
from pathlib import Path

from horovod.common import checkpoint_file
from horovod.common.checkpoint_file import BadCheckpointError
from horovod.common.lineage import FIRST_FORMAT, SeenFile

_NAME = re.compile(r"checkpoint-(?P<number>\d+)(?:-(?P<lineage>[0-9a-f]{16}))?\.hvd")
_TEMPORARY = re.compile(r"\.checkpoint-\d+(?:-[0-9a-f]{16})?\.hvd\.(?P<host>.+)\.(?P<pid>\d+)\.tmp")


def list_files(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the newest first."""
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: (number_of(path), lineage_of(path)), reverse=True)


def number_of(path: Path) -> int:
    """Return the number in a checkpoint's name."""
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match["number"])


def lineage_of(path: Path) -> str:
    """Return the lineage in a checkpoint's name, without reading the file."""
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return match["lineage"] or FIRST_FORMAT


def path_of(folder: Path, number: int, lineage: str) -> Path:
    """Return the path of a new checkpoint."""
    return folder / f"checkpoint-{number:08d}-{lineage}.hvd"


def of_lineage(files: list[Path], lineage: str) -> list[Path]:
    """Return the files of one training, in the given order."""
    return [path for path in files if lineage_of(path) == lineage]


def files_to_resume_from(files: list[Path]) -> list[Path]:
    """Return the files of the newest training, the newest first.

    Raise ValueError if two trainings wrote at the same time.

    A training that started with overwrite=True has only newer files than the one before it.
    """
    runs = [lineage for lineage, _ in itertools.groupby(files, lineage_of)]
    numbers = [number_of(path) for path in files]
    if len(set(runs)) < len(runs) or len(set(numbers)) < len(numbers):
        raise ValueError(
            f"{files[0].parent} holds checkpoints of {len(set(runs))} trainings that were written at the same time. "
            f"`hvd checkpoints {files[0].parent}` shows which files belong together: move those of the others away"
        )
    return of_lineage(files, runs[0])


def look_at(folder: Path, call: int) -> tuple[SeenFile | None, frozenset[str]]:
    """Return the newest file in a folder and all lineages there. A folder that cannot be listed holds none."""
    try:
        files = list_files(folder)
    except OSError:
        return None, frozenset()
    if not files:
        return None, frozenset()
    newest = files[0]
    try:
        commits = checkpoint_file.describe(newest).commit.commits
    except (BadCheckpointError, OSError):
        commits = 0
    seen = SeenFile(call, number_of(newest), lineage_of(newest), commits, os.path.abspath(newest))
    return seen, frozenset(lineage_of(path) for path in files)


def remove_abandoned(folder: Path) -> None:
    """Remove temporary files of processes on this host that have ended."""
    for path in folder.iterdir():
        match = _TEMPORARY.fullmatch(path.name)
        if match and match["host"] == os.uname().nodename and not _is_alive(int(match["pid"])):
            path.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    with suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True
