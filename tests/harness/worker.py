# SPDX-License-Identifier: Apache-2.0
"""Rank of a pool: it runs the bodies that the test process requests, until the connection is closed."""

from __future__ import annotations

import faulthandler
import gc
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import warning_rules
from testkit.modules import load


@dataclass(frozen=True)
class Task:
    """Body, identified by its file and name, and its arguments."""

    file: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """Return value of a body, or the traceback of its exception."""

    value: Any = None
    failure: str | None = None


_files: set[str] = set()  # files of the bodies that have run


def _free_garbage(file: str) -> None:
    """Free what earlier bodies have left in reference cycles, so that nothing is freed in the middle of this body.

    An optimizer that waits for the garbage collector still affects the choice of names, and an array still holds its
    shared memory. Modules that a new file has imported are excluded from later collections, which makes these fast.
    """
    gc.collect()
    if file not in _files:
        _files.add(file)
        gc.freeze()


def _perform(task: Task) -> Answer:
    try:
        function: Callable[..., Any] = getattr(load(task.file, "body_"), task.name)
        _free_garbage(task.file)
        if (torch := sys.modules.get("torch")) is not None:
            # Makes models equal on all ranks, even if earlier bodies drew different numbers of random values.
            torch.manual_seed(0)
        return Answer(getattr(function, "body", function)(**task.arguments))
    except BaseException:  # includes pytest's outcomes and SystemExit, which also fail the test
        return Answer(failure=traceback.format_exc())


def main(descriptor: int) -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    warning_rules.apply()
    import horovod.numpy as hvd

    hvd.init()
    gc.freeze()
    with Connection(descriptor) as connection:
        connection.send(Answer())
        while (task := connection.recv()) is not None:
            connection.send(_perform(task))
    hvd.shutdown()


if __name__ == "__main__":
    from harness import worker  # imported under its module name, so that both sides pickle equal classes

    worker.main(int(sys.argv[1]))
