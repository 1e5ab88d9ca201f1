# SPDX-License-Identifier: Apache-2.0
"""Pickling of users' functions, arguments, results and objects. Only this module imports cloudpickle.

`loads` runs code that is in the bytes. Call it only on bytes from an authenticated connection of this job.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

_SPAWNED_MAIN = "__mp_main__"  # name that multiprocessing gives to the main module in processes that it spawns
_registering = threading.Lock()


def dumps(value: Any) -> bytes:
    import cloudpickle  # type: ignore[import-untyped]  # late: a job that ships no function need not pay for it

    data: bytes = cloudpickle.dumps(value)
    return data


def dumps_with_main(value: Any) -> bytes:
    """Pickle for a process of another program: objects of this program's main module are pickled by value."""
    with _by_value(_SPAWNED_MAIN):
        return dumps(value)


@contextlib.contextmanager
def _by_value(name: str) -> Iterator[None]:
    """Pickle objects of a module by value, if the module exists. cloudpickle itself does so for __main__."""
    import cloudpickle

    with _registering:
        module = sys.modules.get(name)
        if module is None or name in cloudpickle.list_registry_pickle_by_value():
            yield
            return
        cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            cloudpickle.unregister_pickle_by_value(module)


def loads(data: bytes) -> Any:
    import cloudpickle

    return cloudpickle.loads(data)
