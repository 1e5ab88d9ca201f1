# SPDX-License-Identifier: Apache-2.0
"""Handling of the program's daemon threads when the process ends.

Handlers at exit leave the world while daemon threads may still be in calls of this package, which then fail. The
program cannot use these errors any more, and Python would end the threads while they print them. So they are not
printed.
"""

from __future__ import annotations

import os
import re
import threading
from types import TracebackType

from horovod._engine import keep_threads_of_frameworks
from horovod.common.exceptions import HorovodMismatchError

_OUR_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
# Frameworks may pass on only the text of an error, in exceptions of their own.
_TEXTS = re.compile(
    r"Horovod (?:has been shut down|has not been initialized|is not initialized)|process group has been destroyed|"
    r"its process set is not registered|"
    r"this process (?:is ending|has ended)|rank \d+ raised "
)
_CHAIN_LIMIT = 20

_is_prepared = False


def prepare_threads() -> None:
    """Keep daemon threads from disturbing the end of the program. Call this before the world is left at exit.

    Errors of their calls are not printed, because the calls fail when this process leaves. A thread that Python ends
    inside a framework's C++ code is suspended there, so that it does not crash the process.
    """
    global _is_prepared
    if _is_prepared:
        return
    _is_prepared = True
    keep_threads_of_frameworks()
    previous = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if not came_of_leaving(args.exc_value):
            previous(args)

    threading.excepthook = hook


def came_of_leaving(error: BaseException | None) -> bool:
    """Return True if the error, or one of its causes, may come from a world that this process has left."""
    for _ in range(_CHAIN_LIMIT):
        if error is None or isinstance(error, HorovodMismatchError):
            return False
        if _passes_through_us(error.__traceback__) or _TEXTS.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _passes_through_us(traceback: TracebackType | None) -> bool:
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename.startswith(_OUR_FOLDER):
            return True
        traceback = traceback.tb_next
    return False
