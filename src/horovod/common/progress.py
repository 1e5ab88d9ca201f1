# SPDX-License-Identifier: Apache-2.0
"""Progress report of an elastic worker, for the driver, which asks for it from time to time."""

from __future__ import annotations

from typing import Any

from horovod.common.context import Context
from horovod.common.stacks import main_stack


class Progress:
    """Source of progress reports. `commits` counts the commits of the state; the engine counts the rest."""

    def __init__(self, context: Context) -> None:
        self.commits = 0
        self._context = context

    def told(self, *, with_stack: bool) -> dict[str, Any]:
        """Return the report.

        `finished` counts completed operations. `waits` is True if operations are in flight, so that other ranks may be
        the cause of a delay.
        """
        engine = self._context.counters()
        return {
            "commits": self.commits,
            "generation": self._context.generation,
            "finished": engine["operations_finished"] if engine is not None else 0,
            "waits": engine is None or engine["operations_under_way"] > 0,
            "stack": main_stack() if with_stack else "",
        }
