# SPDX-License-Identifier: Apache-2.0
"""Lineages: which training a commit or a checkpoint file belongs to.

A lineage is a random value that is made when a training starts from the beginning. A commit of that training, in
whichever job, is identified by the lineage and by how many commits the lineage has had.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

LINEAGE_BYTES = 8
FIRST_FORMAT = "0" * (2 * LINEAGE_BYTES)  # lineage of all files in format 1, which recorded none
MAX_CALLS = 64  # calls of hvd.elastic.checkpoint() in one program whose files the driver of a job remembers
NO_CALL = -1
_MAX_PATH = 4096
_MAX_NUMBER = (1 << 63) - 1  # the largest signed integer of msgpack


@dataclass(frozen=True)
class CommitId:
    """Id of a commit of a training. `commits` is how many commits its lineage has had, including this one."""

    lineage: str
    commits: int

    def following(self) -> CommitId:
        """Return the id of the next commit of this training."""
        return replace(self, commits=self.commits + 1)


def start_lineage() -> CommitId:
    """Return the id of a new state without commits, with a new lineage."""
    return CommitId(os.urandom(LINEAGE_BYTES).hex(), 0)


@dataclass(frozen=True)
class SeenFile:
    """Checkpoint file that a worker has seen in its folder, which other workers may not be able to see.

    Args:
        call: Which call of hvd.elastic.checkpoint() in the program named the folder, counted from 0.
        number: The number in the file's name.
        commits: Number of commits in the file's lineage, or 0 if the file cannot be read.
    """

    call: int
    number: int
    lineage: str
    commits: int
    path: str

    def is_newer_than(self, other: SeenFile | None) -> bool:
        """Return True if this file is newer than the other.

        Compare by commits within one lineage, and by the numbers in the names between lineages.
        """
        if other is None:
            return True
        if self.lineage == other.lineage and self.commits and other.commits:
            return self.commits > other.commits
        return self.number > other.number

    def packed(self) -> dict[str, Any]:
        """Return a dict that msgpack can encode."""
        return {**asdict(self), "number": min(self.number, _MAX_NUMBER), "path": self.path[:_MAX_PATH]}

    @classmethod
    def unpacked(cls, message: Any) -> SeenFile:
        """Return the file that `packed` described. Raise TypeError or KeyError if the message describes no file."""
        numbers = [message[name] for name in ("call", "number", "commits")]
        texts = [message[name] for name in ("lineage", "path")]
        if any(type(one) is not int for one in numbers) or any(type(one) is not str for one in texts):
            raise TypeError("a checkpoint file is described by three integers and two texts")
        return cls(numbers[0], numbers[1], texts[0], numbers[2], texts[1][:_MAX_PATH])


def newest_of(*files: SeenFile | None) -> SeenFile | None:
    """Return the newest of some files, None if there is none."""
    newest: SeenFile | None = None
    for one in files:
        if one is not None and one.is_newer_than(newest):
            newest = one
    return newest


def merged(known: Mapping[int, SeenFile], found: Iterable[SeenFile]) -> dict[int, SeenFile]:
    """Return the newest file of each call among the known and the found files."""
    result = dict(known)
    for one in found:
        if 0 <= one.call < MAX_CALLS and one.is_newer_than(result.get(one.call)):
            result[one.call] = one
    return result
