# SPDX-License-Identifier: Apache-2.0
"""Hosts and workers of an elastic job that do not reach each other: what the driver knows of them. Pure.

A worker that loses another one in a way that a cut may explain makes the driver suspicious. It then lets all hosts
try to reach each other and announces no generation before the answer is there. Hosts that do not reach each other try
again from time to time. Workers that lose each other twice although their hosts do reach each other count as cut too;
no probe tells when that is over, so after a rest they are given another try.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TypeVar

from horovod.launcher.elastic.choice import BadPairs, BirthPair, HostPair

Pair = TypeVar("Pair", bound=tuple[str | int, str | int])
Value = TypeVar("Value")

PATIENCE_S = 6.0  # twice the time of a round (remote/reachability.py): without any answer, the probes have failed
VALID_S = 10.0  # the answer is worth nothing any more if workers took longer to come together
LASTING_S = 30.0  # workers that were in one generation for so long before a loss do reach each other
ENOUGH = 2  # generations in which a pair of workers has failed
REST = 3.0  # times the interval between probes: the first rest of workers that failed
MAX_SLOWER = 8.0  # times the first interval: probes and tries come no less often


@dataclass(frozen=True)
class Retry:
    """When a pair is looked at again. `after_s`: how long that takes this time."""

    at: float
    after_s: float

    def later(self, now: float, limit_s: float) -> Retry:
        after_s = min(2 * self.after_s, limit_s)
        return Retry(now + after_s, after_s)


@dataclass(frozen=True)
class Round:
    """Probes that are under way. `is_whole`: of all pairs of hosts, and not only those that were cut before."""

    number: int
    pairs: tuple[HostPair, ...]
    began: float
    is_whole: bool


@dataclass(frozen=True)
class Cuts:
    """`losses`: pairs of members that have lost each other in this generation, and the hosts they are on.

    `former`: how long pairs that were healed had waited in the end, and when they were healed; one that is cut again
    soon (a link that flaps) waits longer than a new one. `failures`: generations in which a pair of workers has failed.
    `said`: what the user was told.
    """

    every_s: float = 10.0
    hosts: dict[HostPair, Retry] = field(default_factory=dict)
    workers: dict[BirthPair, Retry] = field(default_factory=dict)
    former: dict[HostPair | BirthPair, Retry] = field(default_factory=dict)
    losses: dict[BirthPair, HostPair] = field(default_factory=dict)
    failures: dict[BirthPair, int] = field(default_factory=dict)
    suspected_at: float = -math.inf
    answered_at: float = -math.inf
    round: Round | None = None
    rounds: int = 0
    announced_at: float = -math.inf
    said: tuple[BadPairs, tuple[int, ...]] = field(default_factory=lambda: (BadPairs(), ()))

    @property
    def bad(self) -> BadPairs:
        return BadPairs(frozenset(self.hosts), frozenset(self.workers))

    def holds_back(self, now: float) -> bool:
        """Return True while it is not known which hosts a suspicion concerns."""
        valid = self.answered_at >= self.suspected_at and now - self.answered_at <= VALID_S
        return bool(self.losses) and not valid

    def next_time(self) -> float:
        """Return when to look again if nothing happens before."""
        if self.round is not None:
            return self.round.began + PATIENCE_S
        return min((one.at for one in (*self.hosts.values(), *self.workers.values())), default=math.inf)


def ordered(one: str, other: str) -> HostPair:
    return min(one, other), max(one, other)


def note_loss(cuts: Cuts, births: tuple[int, int], hosts: tuple[str, str], now: float) -> Cuts:
    """Two members that may both live do not reach each other."""
    pair = min(births), max(births)
    suspected_at = cuts.suspected_at if cuts.losses else now
    return replace(cuts, losses=cuts.losses | {pair: ordered(*hosts)}, suspected_at=suspected_at)


def begin_round(cuts: Cuts, hosts: Collection[str], now: float) -> Cuts:
    """Begin to probe if there is reason to: all pairs of these hosts after a loss, else those whose time has come."""
    if cuts.round is not None:
        return cuts
    is_whole = cuts.holds_back(now)
    pairs: Iterable[HostPair]
    if is_whole:
        pairs = combinations(sorted(hosts), 2)
    else:
        pairs = (pair for pair, retry in sorted(cuts.hosts.items()) if retry.at <= now)
    asked = tuple(pairs)
    if not asked and not is_whole:
        return cuts
    return replace(cuts, round=Round(cuts.rounds, asked, now, is_whole), rounds=cuts.rounds + 1)


def end_round(cuts: Cuts, cut: Collection[HostPair], now: float) -> tuple[Cuts, BadPairs]:
    """Take in the answer to the round that is under way. Return the pairs that were healed too."""
    assert cuts.round is not None
    hosts, former = dict(cuts.hosts), dict(cuts.former)
    for pair in cuts.round.pairs:
        if pair in cut and pair not in hosts:
            hosts[pair] = _first(cuts, pair, now)
        elif pair in cut and hosts[pair].at <= now:
            hosts[pair] = hosts[pair].later(now, _limit(cuts))
        elif pair not in cut and pair in hosts:
            former[pair] = replace(hosts.pop(pair), at=now)
    healed = frozenset(cuts.hosts) - frozenset(hosts)
    answered_at = now if cuts.round.is_whole else cuts.answered_at
    return replace(cuts, hosts=hosts, former=former, round=None, answered_at=answered_at), BadPairs(hosts=healed)


def overdue_answer(cuts: Cuts, now: float) -> frozenset[HostPair] | None:
    """Return what a round without any answer is taken to mean; None if it is not overdue.

    Hosts whose workers have lost each other, and those that were cut before, are cut.
    """
    if cuts.round is None or now < cuts.round.began + PATIENCE_S:
        return None
    return frozenset(cuts.losses.values()) | frozenset(cuts.hosts)


def judge_losses(cuts: Cuts, is_there: Callable[[int], bool], now: float, silence_s: float = 0.0) -> Cuts:
    """Count the failures of workers whose hosts reach each other, once all members ask for places.

    A pair of which one has ended tells nothing.

    Args:
        silence_s: Time until a member notices that it does not reach another one.
    """
    if not cuts.losses:
        return cuts
    failures, workers = dict(cuts.failures), dict(cuts.workers)
    for pair, hosts in cuts.losses.items():
        if hosts in cuts.hosts or not all(is_there(birth) for birth in pair):
            continue
        lasted = now - cuts.announced_at >= silence_s + LASTING_S
        failures[pair] = 1 if lasted else failures.get(pair, 0) + 1
        if failures[pair] >= ENOUGH:
            workers[pair] = _first(cuts, pair, now, REST)
    return replace(cuts, losses={}, failures=failures, workers=workers, answered_at=-math.inf)


def give_another_try(cuts: Cuts, now: float) -> tuple[Cuts, BadPairs]:
    """Let workers whose rest is over try again. One more failure is enough to end that."""
    over = {pair: retry for pair, retry in cuts.workers.items() if retry.at <= now}
    if not over:
        return cuts, BadPairs()
    rest = {pair: retry for pair, retry in cuts.workers.items() if pair not in over}
    failures = cuts.failures | dict.fromkeys(over, ENOUGH - 1)
    former = cuts.former | {pair: replace(retry, at=now) for pair, retry in over.items()}
    return replace(cuts, workers=rest, failures=failures, former=former), BadPairs(workers=frozenset(over))


def forget(cuts: Cuts, hosts: Collection[str], births: Collection[int]) -> Cuts:
    """Keep only what concerns these hosts and workers."""
    if not (cuts.hosts or cuts.workers or cuts.failures or cuts.former):
        return cuts
    known: set[str | int] = {*hosts, *births}
    return replace(
        cuts,
        hosts=_among(cuts.hosts, known),
        workers=_among(cuts.workers, known),
        failures=_among(cuts.failures, known),
        former=_among(cuts.former, known),
    )


def _among(table: Mapping[Pair, Value], known: Collection[str | int]) -> dict[Pair, Value]:
    return {pair: value for pair, value in table.items() if all(one in known for one in pair)}


def _limit(cuts: Cuts, slower: float = 1.0) -> float:
    return MAX_SLOWER * slower * cuts.every_s


def _first(cuts: Cuts, pair: HostPair | BirthPair, now: float, slower: float = 1.0) -> Retry:
    """Return when a pair that has just been cut is looked at: later than last time if it was healed not long ago."""
    former = cuts.former.get(pair)
    if former is not None and now - former.at < _limit(cuts, slower):
        return former.later(now, _limit(cuts, slower))
    return Retry(now + slower * cuts.every_s, slower * cuts.every_s)
