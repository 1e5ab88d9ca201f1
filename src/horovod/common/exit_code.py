# SPDX-License-Identifier: Apache-2.0
"""Notices a SystemExit that ends the program, before any handler of its end runs.

Python passes SystemExit to no hook: it asks the exception for its `code` and begins to finalize. So the attribute
`code` of the class is replaced by one that returns the same value, and that recognizes the interpreter by this: its
question comes from no Python frame. A SystemExit that the program catches is not noticed, nor one of another thread.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

# Until Python 3.11, sys.exit makes no exception object unless something catches it.
_MAKES_NO_OBJECT = sys.version_info < (3, 12)


class _Code:
    """Stands for the attribute `code` of SystemExit."""

    def __init__(self, original: Any, on_exit: Callable[[BaseException, object], object]) -> None:
        self._original = original
        self._on_exit = on_exit

    def __get__(self, error: BaseException | None, owner: type | None = None) -> Any:
        if error is None:
            return self
        code = self._original.__get__(error, owner)
        if _is_asked_by_the_interpreter():
            with suppress(Exception):  # whatever happens, the program ends with its own code
                self._on_exit(error, code)
        return code

    def __set__(self, error: BaseException, code: object) -> None:
        self._original.__set__(error, code)

    def __delete__(self, error: BaseException) -> None:
        self._original.__delete__(error)


def _is_asked_by_the_interpreter() -> bool:
    try:
        sys._getframe(2)  # 0 is this function, 1 is __get__
    except ValueError:
        return threading.current_thread() is threading.main_thread()
    return False


def watch_exit(on_exit: Callable[[BaseException, object], object]) -> bool:
    """Call `on_exit` with a SystemExit that ends the program, and with its code.

    Return False if this Python does not allow that, or if it is watched already.
    """
    import ctypes  # late: the launcher needs this module's neighbours only

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
