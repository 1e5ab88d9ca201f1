# SPDX-License-Identifier: Apache-2.0
"""Detection of a SystemExit that ends the program, before atexit handlers run.

Python passes SystemExit to no hook: it reads the exception's `code` and begins to finalize. So the attribute `code` of
the class is replaced by a descriptor that returns the original value. It recognizes that the interpreter reads the
code, because then no Python frame calls it. A SystemExit that the program catches is not reported, nor is one of
another thread.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

# Up to Python 3.11, sys.exit creates no exception object unless the program catches the exception.
_MAKES_NO_OBJECT = sys.version_info < (3, 12)


class _Code:
    """Descriptor that replaces the attribute `code` of SystemExit."""

    def __init__(self, original: Any, on_exit: Callable[[BaseException, object], object]) -> None:
        self._original = original
        self._on_exit = on_exit

    def __get__(self, error: BaseException | None, owner: type | None = None) -> Any:
        if error is None:
            return self
        code = self._original.__get__(error, owner)
        if _is_asked_by_the_interpreter():
            with suppress(Exception):  # an error here must not change the program's exit code
                self._on_exit(error, code)
        return code

    def __set__(self, error: BaseException, code: object) -> None:
        self._original.__set__(error, code)

    def __delete__(self, error: BaseException) -> None:
        self._original.__delete__(error)


def _is_asked_by_the_interpreter() -> bool:
    try:
        sys._getframe(2)  # raises ValueError if only this function (0) and __get__ (1) are on the stack
    except ValueError:
        return threading.current_thread() is threading.main_thread()
    return False


def watch_exit(on_exit: Callable[[BaseException, object], object]) -> bool:
    """Call `on_exit` with each SystemExit that ends the program, and with its code.

    Return False if this Python version does not allow that, or if it was set up before.
    """
    import ctypes  # imported late because the launcher imports this package but does not call this function

    attributes = next((found for found in gc.get_referents(SystemExit.__dict__) if type(found) is dict), None)
    if attributes is None or "code" not in attributes or isinstance(attributes["code"], _Code):
        return False
    attributes["code"] = _Code(attributes["code"], on_exit)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))
    if _MAKES_NO_OBJECT:
        sys.exit = _exit
    return True


def _exit(status: Any = None, /) -> NoReturn:
    """Exit the interpreter by raising SystemExit(status)."""
    raise SystemExit(status)
