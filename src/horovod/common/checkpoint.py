# SPDX-License-Identifier: Apache-2.0
"""Commits on disk: rank 0 writes them off the training thread, and a job that has died as a whole goes on from them.

What is in a file is checkpoint_file's; what of a state goes there is the state's (`pin_commit`, `load_commit`).
"""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod.common import checkpoint_file
from horovod.common.checkpoint_file import BadCheckpointError
from horovod.common.context import default_context
from horovod.common.log import logger

if TYPE_CHECKING:
    from horovod.common.elastic import State

_NAME = re.compile(r"checkpoint-(\d+)\.hvd")
_TEMPORARY = re.compile(r"\.checkpoint-\d+\.hvd\.(?P<host>.+)\.(?P<pid>\d+)\.tmp")


class Checkpoint:
    """Writes a state's commits to a folder. `resumed_from` is the file that training goes on from, None for none."""

    def __init__(self, state: State, directory: str | os.PathLike[str], every: int, keep: int) -> None:
        if every < 1 or keep < 1:
            raise ValueError(f"every ({every}) and keep ({keep}) must be at least 1")
        self._state = state
        self._folder = Path(directory)
        self._every = every
        self._keep = keep
        self._commits = 0  # since the last one that was handed to a writer
        self._writer: threading.Thread | None = None
        self._has_failed = False
        self.resumed_from: Path | None = None

    @property
    def _writes(self) -> bool:
        """Rank 0 alone; after its loss that is another worker."""
        return default_context.topology.rank == 0

    def resume(self) -> None:
        """Load the newest good file, on rank 0: the others get the state from it when they synchronise."""
        if not self._writes:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        self._clean_up()
        files = list_files(self._folder)
        for path in files:
            try:
                content = checkpoint_file.read(path)
            except (BadCheckpointError, OSError) as error:
                logger.warning("The checkpoint %s is not used: %s", path, error)
                continue
            self._state.load_commit(content)
            self.resumed_from = path
            logger.info("Training goes on from the checkpoint %s", path)
            return
        if files:
            raise ValueError(
                f"None of the {len(files)} checkpoints in {self._folder} is usable. To start from the beginning, "
                "remove them or name another directory"
            )

    def committed(self) -> None:
        """After a commit. One that comes while the last is still being written is left out."""
        self._commits += 1
        if self._commits >= self._every and self._writes and not self._is_busy:
            self._write()

    def finish(self) -> None:
        """Write the last commit, if it is not on disk yet, and wait until it is."""
        self.wait()
        if self._commits and self._writes:
            self._write()
            self.wait()

    def wait(self) -> None:
        """Until what is being written is on disk."""
        if self._writer is not None:
            self._writer.join()

    @property
    def _is_busy(self) -> bool:
        return self._writer is not None and self._writer.is_alive()

    def _write(self) -> None:
        self._commits = 0
        content = self._state.pin_commit()
        # Not a daemon: the end of the program waits for it.
        self._writer = threading.Thread(target=self._write_now, args=(content,), name="horovod-checkpoint")
        self._writer.start()

    def _write_now(self, content: Any) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            files = list_files(self._folder)
            number = _number_of(files[0]) + 1 if files else 1
            checkpoint_file.write(self._folder / f"checkpoint-{number:08d}.hvd", content)
            for old in files[self._keep - 1 :]:
                old.unlink(missing_ok=True)
            if self._has_failed:
                logger.warning("Checkpoints are written to %s again", self._folder)
            self._has_failed = False
        except Exception as error:  # whatever it is, training is worth more than its copy on disk
            if not self._has_failed:
                logger.warning(
                    "No checkpoint could be written to %s, and training goes on without: %s. The next commits are "
                    "tried, but this is not said again",
                    self._folder,
                    error,
                )
            self._has_failed = True
        finally:
            self._state.release_commit()

    def _clean_up(self) -> None:
        """Remove what processes of this machine that have died began to write."""
        for path in self._folder.iterdir():
            match = _TEMPORARY.fullmatch(path.name)
            if match and match["host"] == os.uname().nodename and not _is_alive(int(match["pid"])):
                path.unlink(missing_ok=True)


def checkpoint(state: State, directory: str | os.PathLike[str], every: int = 1, keep: int = 3) -> Checkpoint:
    """Write commits of `state` to a directory, and go on from the newest one there. Call it after hvd.init(), before
    training.

    Rank 0 writes every `every`-th commit, off the training thread, and keeps the `keep` newest. A file is there whole
    or not at all; one that was damaged since is passed over for the next older.
    """
    if not default_context.is_initialized:
        raise ValueError("hvd.elastic.checkpoint() is called after hvd.init(): only rank 0 reads and writes")
    result = Checkpoint(state, directory, every, keep)
    result.resume()
    state.use_checkpoint(result)
    return result


def list_files(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the newest first."""
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), key=_number_of, reverse=True)


def _number_of(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _is_alive(pid: int) -> bool:
    with suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True
