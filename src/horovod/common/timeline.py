# SPDX-License-Identifier: Apache-2.0
"""Which rank writes its timeline where: only rank 0, unless there is to be a file for each rank."""

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
    """What is to be written: a file, or nothing. That of an elastic job outlives its generations."""

    path: str | os.PathLike[str] | None
    mark_cycles: bool = False


def first_wish(settings: Settings) -> Wish:
    """What HOROVOD_TIMELINE asks for."""
    path = settings.text("HOROVOD_TIMELINE")
    return Wish(None if path == _DYNAMIC else path, settings.flag("HOROVOD_TIMELINE_MARK_CYCLES"))


def begin(world: World, settings: Settings, rank: int, wish: Wish, generation: int = 0) -> None:
    """At initialisation. Each generation of an elastic job has a file of its own: what was written stays."""
    if wish.path is not None:
        path = path_of_generation(os.fsdecode(wish.path), generation)
        start(world, settings, rank, path, wish.mark_cycles)


def path_of_generation(path: str, generation: int) -> str:
    """`trace.json` is `trace.generation-2.json` in generation 2."""
    root, extension = os.path.splitext(path)
    return f"{root}.generation-{generation}{extension}" if generation else path


def start(world: World, settings: Settings, rank: int, path: str | os.PathLike[str], mark_cycles: bool) -> None:
    """Write to `path` from now on. A file that cannot be written is a warning: nobody trains for the timeline.

    ValueError if it is not a file name at all.
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
    """`trace.%r.json` is a file for each rank; with `all_ranks` so is `trace.json`: `trace.3.json`. None: no file."""
    if _RANK in path:
        return path.replace(_RANK, str(rank))
    if all_ranks:
        root, extension = os.path.splitext(path)
        return f"{root}.{rank}{extension}"
    return path if rank == 0 else None


def _require(settings: Settings) -> None:
    if settings.text("HOROVOD_TIMELINE") is None:
        raise ValueError("Set HOROVOD_TIMELINE=DYNAMIC (or to a file) to start and stop the timeline from a script")
