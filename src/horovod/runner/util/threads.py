# SPDX-License-Identifier: Apache-2.0
"""Threads, under their old import path."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any


def in_thread(
    target: Callable[..., Any],
    args: Sequence[Any] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Run `target` in a started thread. `silent`: what it raises is dropped."""

    def quietly(*given: Any) -> None:
        try:
            target(*given)
        except Exception:  # asked for by the caller
            pass

    thread = threading.Thread(target=quietly if silent else target, args=tuple(args), name=name, daemon=daemon)
    thread.start()
    return thread
