# SPDX-License-Identifier: Apache-2.0
"""Named pipes through which workers report progress and wait for permission to go on, so that no test sleeps.

Workers import nothing for this; they run a line of Python from this module.
"""

from __future__ import annotations

import os
import select
import time
from pathlib import Path
from typing import TypeVar

from testkit.speed import patience

_Pipe = TypeVar("_Pipe", bound="_NamedPipe")


class _NamedPipe:
    """Named pipe that is held open at both ends, so that opening it blocks neither side."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._file = open(path, "r+b", buffering=0)  # noqa: SIM115 - closed at the end of the `with` block

    def __enter__(self: _Pipe) -> _Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class Ready(_NamedPipe):
    """Pipe into which workers write lines; a worker runs `tell` with a text that ends with a newline."""

    @property
    def tell(self) -> str:
        return f"open({self.path!r}, 'w').write"

    def wait(self, count: int, limit_s: float = 30) -> list[str]:
        """Wait for this many lines and return their words."""
        limit_s = patience(limit_s)
        give_up = time.monotonic() + limit_s
        told = b""
        while (lines := told.count(b"\n")) < count:
            left = give_up - time.monotonic()
            assert left > 0, f"only {lines} of {count} workers are ready after {limit_s:g} s"
            if select.select([self._file], [], [], left)[0]:
                told += self._file.read(4096)
        return told.decode().split()


class Gate(_NamedPipe):
    """Pipe on which workers wait in `pass_through`; `open(n)` releases n, `let_one_pass` in a worker one."""

    @property
    def pass_through(self) -> str:
        return f"open({self.path!r}, 'rb', buffering=0).read(1)"

    @property
    def let_one_pass(self) -> str:
        return f"open({self.path!r}, 'wb', buffering=0).write(b'x')"

    def open(self, count: int = 1) -> None:
        self._file.write(b"x" * count)
