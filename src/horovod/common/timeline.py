# SPDX-License-Identifier: Apache-2.0
"""Which rank writes its timeline where: only rank 0, unless there is to be a file for each rank."""

from __future__ import annotations

import logging
import os

from horovod._engine import EngineError, World
from horovod.common.settings import BY_NAME, Settings, parse

_DYNAMIC = "DYNAMIC"
_RANK = "%r"
_FILE = BY_NAME["HOROVOD_TIMELINE"].given_as("file_path")

_logger = logging.getLogger(__name__)


def begin(world: World, settings: Settings, rank: int) -> None:
    """At initialisation: start the timeline that HOROVOD_TIMELINE asks for."""
    path = settings.text("HOROVOD_TIMELINE")
    if path is not None and path != _DYNAMIC:
        start(world, settings, rank, path, settings.flag("HOROVOD_TIMELINE_MARK_CYCLES"))


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
