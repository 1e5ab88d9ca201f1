# SPDX-License-Identifier: Apache-2.0
"""One line on the terminal while workers start: how many have come to the rendezvous. Nothing in pipes and files.

It appears only if the start takes long enough to wonder about, and is gone before anything else is written.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from horovod.common.rendezvous_server import Server
from horovod.runner.output import Sink

_PATIENCE_S = 0.7
_LOOK_S = 0.1


class StartProgress:
    """Shown from a thread of its own until all ranks have met, something was written, or `stop`."""

    def __init__(self, server: Server, ranks: int) -> None:
        self._server = server
        self._ranks = ranks
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, name="horovodrun-progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if not self._over.is_set():
            self._over.set()
            self._thread.join()

    def clearing(self, sink: Sink) -> Sink:
        """The same sink, before whose first use the line is wiped away."""

        def write(data: bytes) -> None:
            self.stop()
            sink(data)

        return write

    def _show(self) -> None:
        if self._over.wait(_PATIENCE_S) or self._server.has_met:
            return
        from rich.console import Console  # late: most starts are over before it would be loaded

        with Console(stderr=True).status(self._text()) as line:
            while not (self._over.wait(_LOOK_S) or self._server.has_met):
                line.update(self._text())

    def _text(self) -> str:
        return f"horovodrun: {self._server.waiting} of {self._ranks} ranks have called hvd.init()"


@contextmanager
def start_progress(server: Server, ranks: int, stdout: Sink, stderr: Sink) -> Iterator[tuple[Sink, Sink]]:
    """Sinks to use while the line may be there: the given ones, unless stderr is a terminal."""
    if not (os.isatty(2) and os.environ.get("TERM", "dumb") != "dumb"):
        yield stdout, stderr
        return
    progress = StartProgress(server, ranks)
    try:
        yield progress.clearing(stdout), progress.clearing(stderr)
    finally:
        progress.stop()
