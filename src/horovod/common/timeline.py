# SPDX-License-Identifier: Apache-2.0
"""Timeline files: which rank writes which file. Only rank 0 writes, unless the user asks for a file for each rank."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from horovod._engine import EngineError, World
from horovod.common.settings import BY_NAME, Settings, parse

_DYNAMIC = "DYNAMIC"
_RANK = "%r"
_FILE = BY_NAME["HOROVOD_TIMELINE"].given_as("file_path")

_logger = logging.getLogger(__name__)


@dataclass
class Wish:
    """Request for a timeline: a file to write, or None. In an elastic job it is kept from generation to generation."""

    path: str | os.PathLike[str] | None
    mark_cycles: bool = False


class Timelines:
    """Timelines of a context's worlds, one after the other."""

    def __init__(self) -> None:
        self._wish = Wish(None)

    def choose(self, settings: Settings) -> None:
        """Take the wish from HOROVOD_TIMELINE."""
        self._wish = first_wish(settings)

    def begin(self, world: World, settings: Settings, rank: int, generation: int) -> None:
        """Start the timeline of a new world, if there is to be one."""
        begin(world, settings, rank, self._wish, generation)

    def start(
        self, world: World, settings: Settings, rank: int, path: str | os.PathLike[str], mark_cycles: bool
    ) -> None:
        """Write to `path` from now on, also in later worlds. Raise ValueError if it is not a valid file name."""
        start(world, settings, rank, path, mark_cycles)
        self._wish = Wish(path, mark_cycles)

    def stop(self, world: World, settings: Settings) -> None:
        """Finish the file, and write none in later worlds."""
        stop(world, settings)
        self._wish = Wish(None)


def first_wish(settings: Settings) -> Wish:
    """Return what HOROVOD_TIMELINE asks for."""
    path = settings.text("HOROVOD_TIMELINE")
    return Wish(None if path == _DYNAMIC else path, settings.flag("HOROVOD_TIMELINE_MARK_CYCLES"))


def begin(world: World, settings: Settings, rank: int, wish: Wish, generation: int = 0) -> None:
    """Start the timeline of a new world, if there is to be one.

    Each generation of an elastic job has a file of its own, so that earlier files are kept.
    """
    if wish.path is not None:
        path = path_of_generation(os.fsdecode(wish.path), generation)
        start(world, settings, rank, path, wish.mark_cycles)


def path_of_generation(path: str, generation: int) -> str:
    """Return the file of a generation: `trace.json` becomes `trace.generation-2.json` in generation 2."""
    root, extension = os.path.splitext(path)
    return f"{root}.generation-{generation}{extension}" if generation else path


def start(world: World, settings: Settings, rank: int, path: str | os.PathLike[str], mark_cycles: bool) -> None:
    """Write to `path` from now on. If the file cannot be written, warn and go on, because training does not need it.

    Raise ValueError if `path` is not a valid file name.
    """
    _require(settings)
    name = str(parse(_FILE, os.fsdecode(path)))
    file = file_of_rank(name, rank, settings.flag("HOROVOD_TIMELINE_ALL_RANKS"))
    if file is None:
        return
    try:
        world.start_timeline(os.fsencode(file), bool(mark_cycles))
    except EngineError as error:
        _logger.warning("Rank %d writes no timeline: %s", rank, error.args[1])


def stop(world: World, settings: Settings) -> None:
    """Finish the file, if this rank writes one."""
    _require(settings)
    world.stop_timeline()


def file_of_rank(path: str, rank: int, all_ranks: bool) -> str | None:
    """Return the file that a rank writes, or None.

    With `trace.%r.json`, every rank writes a file. With `all_ranks`, rank 3 writes `trace.3.json` for `trace.json`.
    Else only rank 0 writes.
    """
    if _RANK in path:
        return path.replace(_RANK, str(rank))
    if all_ranks:
        root, extension = os.path.splitext(path)
        return f"{root}.{rank}{extension}"
    return path if rank == 0 else None


def _require(settings: Settings) -> None:
    if settings.text("HOROVOD_TIMELINE") is None:
        raise ValueError("Set HOROVOD_TIMELINE=DYNAMIC (or to a file) to start and stop the timeline from a script")
