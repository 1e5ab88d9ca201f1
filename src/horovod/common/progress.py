# SPDX-License-Identifier: Apache-2.0
"""What a worker of an elastic job has got done, for the driver, which asks now and then."""

from __future__ import annotations

from typing import Any

from horovod.common.context import Context
from horovod.common.stacks import main_stack


class Progress:
    """`commits` counts the state's; the rest is the engine's."""

    def __init__(self, context: Context) -> None:
        self.commits = 0
        self._context = context

    def told(self, *, with_stack: bool) -> dict[str, Any]:
        """`finished`: operations that are over. `waits`: whether some are under way, so that others may be to blame."""
        engine = self._context.counters()
        return {
            "commits": self.commits,
            "generation": self._context.generation,
            "finished": engine["operations_finished"] if engine is not None else 0,
            "waits": engine is None or engine["operations_under_way"] > 0,
            "stack": main_stack() if with_stack else "",
        }
