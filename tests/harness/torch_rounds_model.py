# SPDX-License-Identifier: Apache-2.0
"""Model in plain Python of one DistributedOptimizer on ranks that follow different schedules.

A gradient is one number. Ranks run until they must communicate; then the rules of docs/pytorch.md give the outcome.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

COUNT = 3  # number of parameters
Operation = tuple[str, tuple[int, ...], int]  # name, and for "backward" also the parameters and a factor
Schedule = list[Operation]


class Raised(Exception):  # noqa: N818 - an outcome, not an error
    """Outcome with an error that a user can get; `args[0]` tells which one."""


@dataclass(frozen=True)
class Plan:
    """Settings that all ranks have in common."""

    passes: int = 1
    group: tuple[int, ...] = ()  # parameters that are reduced as one unit
    wait: bool = True  # True if backward() waits for the reductions
    joins: bool = False  # True if a rank that is done calls join(); False if it leaves
    frozen: tuple[tuple[int, ...], ...] = ()  # for each rank, the parameters that it does not train


@dataclass
class Rank:
    """One rank, with its parameters and the progress of each gradient."""

    plan: Plan
    schedule: Schedule
    frozen: tuple[int, ...] = ()
    parameters: list[int] = field(default_factory=lambda: [0] * COUNT)
    gradients: list[int | None] = field(default_factory=lambda: [None] * COUNT)
    passes: list[int] = field(default_factory=lambda: [0] * COUNT)  # backward passes of each parameter in this round
    due: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    complete: bool = False
    steps: int = 0  # all steps
    steps_since: int = 0  # steps since this rank last communicated
    outcome: str = "ended"

    def run(self) -> Iterator[str]:
        """Run the schedule; yield the current operation whenever the rank must communicate with the others."""
        try:
            for name, numbers, factor in self.schedule:
                if name == "backward":
                    yield from self._backward(numbers, factor)
                elif name == "zero_grad":
                    self._zero_grad()
                else:
                    yield from self._synchronize()
                    if name != "synchronize":
                        self._step()
        except Raised as raised:
            self.outcome = str(raised)

    def _backward(self, numbers: tuple[int, ...], factor: int) -> Iterator[str]:
        numbers = tuple(number for number in numbers if number not in self.frozen)
        for number in numbers:
            self.gradients[number] = (self.gradients[number] or 0) + factor * (number + 1)
        for number in numbers:
            if number in self.due | self.done:
                raise Raised("refused")
            self.passes[number] += 1
            if self.passes[number] == self.plan.passes:
                self.due.add(number)
        if self.due and self.plan.wait:
            yield "backward"

    def _zero_grad(self) -> None:
        group = set(self.plan.group)
        if self.due - group or (group and group <= self.due):
            raise Raised("under way")
        self.passes = [0] * COUNT
        self.done.clear()
        self.due.clear()
        self.complete = False
        self.gradients = [None] * COUNT

    def _synchronize(self) -> Iterator[str]:
        while not self.complete:
            yield "step"
        self.complete = False
        self.passes = [0] * COUNT
        self.done.clear()

    def _step(self) -> None:
        self.parameters = [
            value - (gradient or 0) for value, gradient in zip(self.parameters, self.gradients, strict=True)
        ]
        self.steps += 1
        self.steps_since += 1


def play(plan: Plan, schedules: list[Schedule]) -> list[Rank]:
    """Return all ranks after the last of them is done."""
    frozen = plan.frozen or ((),) * len(schedules)
    ranks = [Rank(plan, schedule, fixed) for schedule, fixed in zip(schedules, frozen, strict=True)]
    running = [(rank, rank.run()) for rank in ranks]
    places = [next(script, None) for _, script in running]
    while any(places):
        speaking = [number for number, place in enumerate(places) if place]
        alone = len(speaking) < len(ranks) and not plan.joins
        error = "left" if alone else _meet([ranks[number] for number in speaking], [places[it] for it in speaking])
        for number in speaking:
            script = running[number][1]
            try:
                places[number] = script.throw(Raised(error)) if error else next(script, None)
            except StopIteration:
                places[number] = None
    return ranks


def _meet(speaking: list[Rank], places: list[str | None]) -> str | None:
    if len({rank.steps_since for rank in speaking}) > 1 or len({frozenset(rank.done) for rank in speaking}) > 1:
        return "apart"
    computing = "backward" in places
    wanted = set().union(*(rank.due for rank in speaking))
    left = {number for rank in speaking for number in range(COUNT) if number not in rank.frozen}
    left -= wanted | speaking[0].done
    if not computing:
        wanted |= left
    for number in wanted:
        total = sum(rank.gradients[number] or 0 for rank in speaking)
        for rank in speaking:
            rank.gradients[number] = total
    for rank in speaking:
        rank.done |= wanted
        rank.due.clear()
        rank.complete = not computing or not left
        rank.steps_since = 0
    return None
