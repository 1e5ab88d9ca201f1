# SPDX-License-Identifier: Apache-2.0
"""Python's part of the log: the logger "horovod", whose lines look like the engine's (engine/base/log.h).

It is an ordinary logger. If the user gives it or the root logger a handler, before or after init, ours prints nothing.
If the user sets its level, that level is kept.
"""

from __future__ import annotations

import logging
import sys
import time

from horovod.common.settings import Settings

logger = logging.getLogger("horovod")

LEVELS = {
    "trace": 5,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
_NAMES = {number: name.upper() for name, number in LEVELS.items()}


class _Lines(logging.Formatter):
    """Formatter of lines such as `2026-01-31 12:00:00.123 [0] [horovod] WARNING: text`, or without the time."""

    def __init__(self, rank: int, hides_time: bool) -> None:
        super().__init__()
        self._rank, self._hides_time = rank, hides_time

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        moment = "" if self._hides_time else f"{seconds}.{int(record.msecs):03} "
        level = _NAMES.get(record.levelno, record.levelname)
        return f"{moment}[{self._rank}] [horovod] {level}: {super().format(record)}"


class _Standard(logging.Handler):
    """Handler that writes records up to INFO to stdout and others to stderr, each in one write.

    It writes nothing if the user has a handler for these records.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers or any(handler is not self for handler in logger.handlers):
            return
        stream = sys.stdout if record.levelno <= logging.INFO else sys.stderr
        try:
            stream.write(self.format(record) + "\n")
            stream.flush()
        except Exception:
            self.handleError(record)


_handler = _Standard()
_our_level = logging.NOTSET
_told: set[str] = set()  # messages that were logged once in this process: settings without effect, no launcher, no MPI


def begin(settings: Settings, rank: int) -> None:
    """Configure the log from the settings, before a world starts. On rank 0, warn about settings without effect."""
    _configure(settings, rank)
    logger.debug("settings: %s", " ".join(f"{name}={value}" for name, value in sorted(settings.explicit.items())))
    if rank != 0:
        return
    for name in settings.without_effect():
        if name not in _told:
            _told.add(name)
            logger.warning("%s is set: it is accepted, but has no effect in this version", name)


def say_alone() -> None:
    """Log that no launcher has started this process, because most users in that case forgot the launcher."""
    if "alone" in _told:
        return
    _told.add("alone")
    logger.info(
        "no launcher started this process: it trains alone. For several ranks: horovodrun -np 2 python train.py"
    )


def say_without_mpi(why: str) -> None:
    """Log that collectives run without MPI although the user asked for MPI."""
    if "mpi" in _told:
        return
    _told.add("mpi")
    logger.warning(
        "HOROVOD_CPU_OPERATIONS asks for MPI, but collectives run on shared memory and TCP: %s. Set it to gloo, or "
        "unset it, if that is what you want",
        why,
    )


def _configure(settings: Settings, rank: int) -> None:
    global _our_level
    _handler.setFormatter(_Lines(rank, settings.flag("HOROVOD_LOG_HIDE_TIME")))
    if _handler not in logger.handlers:
        logger.addHandler(_handler)
    if logger.level not in (logging.NOTSET, _our_level):
        return  # the user has set the level
    users_handlers = bool(logging.getLogger().handlers)
    if users_handlers and "HOROVOD_LOG_LEVEL" not in settings.explicit:
        _our_level = logging.NOTSET  # leaves the level to the user's configuration
    else:
        _our_level = LEVELS[str(settings.text("HOROVOD_LOG_LEVEL")).lower()]
    logger.setLevel(_our_level)
