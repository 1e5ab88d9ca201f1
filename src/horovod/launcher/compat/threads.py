# SPDX-License-Identifier: Apache-2.0
"""Threads under Horovod's names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def in_thread(
    target: Callable[..., Any],
    args: Sequence[Any] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Run `target` in a started thread. If `silent`, drop its exceptions."""
    _check_arguments(args)

    def quietly(*given: Any) -> None:
        try:
            target(*given)
        except Exception:  # the caller asked to drop exceptions
            pass

    thread = threading.Thread(target=quietly if silent else target, args=tuple(args), name=name, daemon=daemon)
    thread.start()
    return thread


def on_event(
    event: threading.Event,
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    stop: threading.Event | None = None,
    check_stop_interval_s: float = 1.0,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Start a thread that calls `func` once the event is set, unless `stop` is set before. Return the thread."""
    if event is None:
        raise ValueError("on_event needs an event to wait for, not None")
    if stop is not None and check_stop_interval_s <= 0:
        raise ValueError(f"check_stop_interval_s must be above 0, not {check_stop_interval_s}")
    _check_arguments(args)

    def wait() -> None:
        if stop is None:
            event.wait()
        else:
            while not event.wait(check_stop_interval_s):
                if stop.is_set():
                    return
        if stop is None or not stop.is_set():
            func(*args)

    return in_thread(wait, daemon=daemon, silent=silent)


def execute_function_multithreaded(
    fn: Callable[..., Any],
    args_list: Sequence[Sequence[Any]],
    block_until_all_done: bool = True,
    max_concurrent_executions: int = 1000,
) -> dict[int, Any] | None:
    """Call `fn` once for each list of arguments, concurrently.

    Return the results by index, and raise the exception of a failed call. Without `block_until_all_done`, return None
    at once.
    """
    if not args_list:
        return {} if block_until_all_done else None
    pool = ThreadPoolExecutor(min(len(args_list), max_concurrent_executions))
    calls = [pool.submit(fn, *args) for args in args_list]
    pool.shutdown(wait=block_until_all_done)
    return {index: call.result() for index, call in enumerate(calls)} if block_until_all_done else None


def _check_arguments(args: Sequence[Any]) -> None:
    if not isinstance(args, tuple | list):
        raise ValueError(f"args must be a tuple or a list, not {args!r}; for a single argument write (argument,)")
