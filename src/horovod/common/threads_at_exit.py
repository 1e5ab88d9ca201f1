# SPDX-License-Identifier: Apache-2.0
"""The end of the process, as daemon threads of the program see it.

What runs at exit leaves the world while such threads may still be inside calls of ours, which then fail. The program
has no use for these errors any more, and Python ends the threads in the middle of printing them, so they stay silent.
"""

from __future__ import annotations

import os
import re
import threading
from types import TracebackType

from horovod._engine import keep_threads_of_frameworks
from horovod.common.exceptions import HorovodMismatchError

_OUR_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
# Frameworks pass on the text alone, in exceptions of their own.
_TEXTS = re.compile(
    r"Horovod (?:has been shut down|has not been initialized|is not initialized)|process group has been destroyed|"
    r"its process set is not registered|"
    r"this process (?:is ending|has ended)|rank \d+ raised "
)
_CHAIN_LIMIT = 20

_is_prepared = False


def prepare_threads() -> None:
    """Keep daemon threads from troubling the end of the program. Call before the world is left at exit.

    Their calls fail because this process leaves: nothing is printed of that. When Python ends them inside C++ of a
    framework, they stay there instead of taking the process down.
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
    """Return True if the error, or one that it followed from, may come of a world that this process has left."""
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
