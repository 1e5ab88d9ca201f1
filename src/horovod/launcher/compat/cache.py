# SPDX-License-Identifier: Apache-2.0
"""Cache of results in a file, with an age limit."""

from __future__ import annotations

import functools
import os
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from horovod.common import serialization

CACHE_FOLDER = os.path.join(os.path.expanduser("~"), ".horovod")
CACHE_STALENESS_THRESHOLD_MINUTES = 60
_FILE = "cache.bin"


class Cache:
    """Values by key, with their age. Values stored under other parameters are ignored."""

    def __init__(self, cache_folder: str, cache_staleness_threshold_in_minutes: float, parameters_hash: Any) -> None:
        self._path = os.path.join(cache_folder, _FILE)
        self._most_s = cache_staleness_threshold_in_minutes * 60
        self._parameters = parameters_hash
        self._lock = threading.Lock()
        os.makedirs(cache_folder, mode=0o700, exist_ok=True)
        self._values: dict[Any, tuple[float, Any]] = self._load()

    def get(self, key: Any) -> Any:
        """Return the value, or None if it is missing or too old."""
        with self._lock:
            kept_at, value = self._values.get(key, (0.0, None))
        return value if time.time() - kept_at < self._most_s else None

    def put(self, key: Any, val: Any) -> None:
        with self._lock:
            self._values[key] = (time.time(), val)
            self._save()

    def parameters_hash(self) -> Any:
        return self._parameters

    def _load(self) -> dict[Any, tuple[float, Any]]:
        try:
            if os.stat(self._path).st_uid != os.geteuid():
                return {}  # the file belongs to another user, and unpickling it would run that user's code
            with open(self._path, "rb") as file:
                parameters, values = serialization.loads(file.read())
        except Exception:  # the file is missing, incomplete, or not a cache
            return {}
        return values if parameters == self._parameters and isinstance(values, dict) else {}

    def _save(self) -> None:
        descriptor, new = tempfile.mkstemp(dir=os.path.dirname(self._path))
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(serialization.dumps((self._parameters, self._values)))
            os.replace(new, self._path)
        except BaseException:
            with suppress(OSError):
                os.unlink(new)
            raise


def use_cache() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that lets calls pass `fn_cache=Cache(...)` to reuse a fresh result."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def cached(*args: Any, fn_cache: Cache | None = None, **kwargs: Any) -> Any:
            if fn_cache is None:
                return function(*args, **kwargs)
            key = (function.__module__, function.__qualname__, repr(args), repr(sorted(kwargs.items())))
            found = fn_cache.get(key)
            if found is None:
                found = function(*args, **kwargs)
                fn_cache.put(key, found)
            return found

        return cached

    return decorate
