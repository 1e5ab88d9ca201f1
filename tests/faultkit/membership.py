# SPDX-License-Identifier: Apache-2.0
"""Membership decisions of an elastic job under test, without processes, sockets or a clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.launcher.elastic import vocabulary as v
from horovod.launcher.elastic.membership import decide
from horovod.launcher.elastic.state import State
from horovod.launcher.elastic.vocabulary import Limits


class Driver:
    """Driver that feeds events to the decisions and records the actions."""

    def __init__(self, hosts: dict[str, int], now: float = 0.0, **limits: Any) -> None:
        asked = {"num_proc": 3, "min_num_proc": 2, "max_num_proc": 8} | limits
        self.state, self.now = State(Limits(**asked)), now
        self.log: list[v.Action] = []
        self.tell(v.Discovered(hosts))

    def tell(self, event: v.Event, later: float = 0.0) -> list[v.Action]:
        self.now += later
        self.state, actions = decide(self.state, event, self.now)
        self.log += actions
        return actions

    def begin(self) -> list[v.Action]:
        actions: list[v.Action] = []
        for birth in list(self.state.workers):
            actions = self.tell(v.Ready(birth))
        return actions

    def ranks(self) -> dict[int, int | None]:
        return {birth: self.state.workers[birth].rank for birth in self.state.members if birth in self.state.workers}


def kinds(actions: Sequence[v.Action]) -> list[str]:
    return [type(action).__name__ for action in actions]
