# SPDX-License-Identifier: Apache-2.0
"""One rank of a pool: runs the bodies that the tests' process names, until that closes the connection."""

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
    """A body, by the file and name it is found under, and its arguments."""

    file: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What a body returned, or the traceback it ended with."""

    value: Any = None
    failure: str | None = None


_files: set[str] = set()  # of the bodies so far


def _free_garbage(file: str) -> None:
    """Free what earlier bodies have left in reference cycles, so that none of it goes in the middle of this body.

    An optimizer that waits for the garbage collector still takes part in the choice of names, and an array still holds
    its shared memory. The modules that each new file has imported are left out of later collections, which are fast.
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
            torch.manual_seed(0)  # models are the same on all ranks, whatever bodies before this one have drawn
        return Answer(getattr(function, "body", function)(**task.arguments))
    except BaseException:  # also pytest's outcomes, and SystemExit: whatever ends a body fails the test
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
    from harness import worker  # under its own name, so that both sides pickle the same classes

    worker.main(int(sys.argv[1]))
