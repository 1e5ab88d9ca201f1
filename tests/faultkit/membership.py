# SPDX-License-Identifier: Apache-2.0
"""Membership decisions of an elastic job under test, without processes, sockets or a clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.launcher.elastic import membership as m
from horovod.launcher.elastic.vocabulary import Limits


class Driver:
    """Driver that feeds events to the decisions and records the actions."""

    def __init__(self, hosts: dict[str, int], now: float = 0.0, **limits: Any) -> None:
        asked = {"num_proc": 3, "min_num_proc": 2, "max_num_proc": 8} | limits
        self.state, self.now = m.State(Limits(**asked)), now
        self.log: list[m.Action] = []
        self.tell(m.Discovered(hosts))

    def tell(self, event: m.Event, later: float = 0.0) -> list[m.Action]:
        self.now += later
        self.state, actions = m.decide(self.state, event, self.now)
        self.log += actions
        return actions

    def begin(self) -> list[m.Action]:
        actions: list[m.Action] = []
        for birth in list(self.state.workers):
            actions = self.tell(m.Ready(birth))
        return actions

    def ranks(self) -> dict[int, int | None]:
        return {birth: self.state.workers[birth].rank for birth in self.state.members if birth in self.state.workers}


def kinds(actions: Sequence[m.Action]) -> list[str]:
    return [type(action).__name__ for action in actions]
