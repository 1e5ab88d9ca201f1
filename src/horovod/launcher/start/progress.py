# SPDX-License-Identifier: Apache-2.0
"""One line on the terminal while workers start: how many have reached the rendezvous. Pipes and files get nothing.

The line appears only if the start takes noticeably long, and is removed before any other output.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from horovod.common.rendezvous.server import Server
from horovod.launcher.output.user_output import UserOutput
from horovod.launcher.output.writers import Sink

_PATIENCE_S = 0.7
_LOOK_S = 0.1


class StartProgress:
    """Thread that shows the line until all ranks have met, something else is written, or `stop` is called."""

    def __init__(self, server: Server, ranks: int, terminal: Sink) -> None:
        self._server = server
        self._ranks = ranks
        self._terminal = _Terminal(terminal)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, name="horovodrun-progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if not self._over.is_set():
            self._over.set()
            self._thread.join()

    def _show(self) -> None:
        if self._over.wait(_PATIENCE_S) or self._server.has_met:
            return
        from rich.console import Console  # imported late, because most starts are over before rich would be loaded

        # Tell Rich that this is a terminal, because it would ask the file, which is only a sink before the terminal.
        console = Console(file=self._terminal, force_terminal=True)  # type: ignore[arg-type]
        with console.status(self._text()) as line:
            while not (self._over.wait(_LOOK_S) or self._server.has_met):
                line.update(self._text())

    def _text(self) -> str:
        return f"horovodrun: {self._server.waiting} of {self._ranks} ranks have called hvd.init()"


class _Terminal:
    """File object for rich on top of a sink. Writing never waits, even for a terminal that Ctrl-S has stopped."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, text: str) -> None:
        if not self._sink.is_full:
            self._sink.put_quietly(text.encode())

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True


@contextmanager
def start_progress(server: Server, ranks: int, output: UserOutput) -> Iterator[None]:
    """Show the progress line while the ranks start, if stderr is a terminal. It disappears before any other output."""
    if not (os.isatty(2) and os.environ.get("TERM", "dumb") != "dumb"):
        yield
        return
    progress = StartProgress(server, ranks, output.stderr)
    for sink in (output.stdout, output.stderr):
        sink.before_put = progress.stop
    try:
        yield
    finally:
        progress.stop()
        for sink in (output.stdout, output.stderr):
            sink.before_put = None
