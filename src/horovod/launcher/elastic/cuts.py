# SPDX-License-Identifier: Apache-2.0
"""Record of hosts and workers of an elastic job that cannot reach each other. Pure functions only.

When a worker loses another one in a way that a cut may explain, the driver lets all hosts try to reach each other, and
announces no generation before the answer. Pairs of hosts that failed are probed again from time to time. Workers that
lose each other twice although their hosts reach each other count as cut too. No probe can tell when that is over, so
after a rest they try again.
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

# twice the time of a round (see remote/reachability.py); probes without an answer by then have failed
PATIENCE_S = 6.0
VALID_S = 10.0  # age up to which an answer is used when workers come together
LASTING_S = 30.0  # workers that shared a generation for this time before a loss can reach each other
ENOUGH = 2  # number of generations in which a pair of workers fails before it counts as cut
REST = 3.0  # factor on the interval between probes: the first rest of workers that failed
MAX_SLOWER = 8.0  # factor on the first interval: upper limit for the interval of probes and tries


@dataclass(frozen=True)
class Retry:
    """Time at which a pair is checked again. `after_s` is the current interval."""

    at: float
    after_s: float

    def later(self, now: float, limit_s: float) -> Retry:
        after_s = min(2 * self.after_s, limit_s)
        return Retry(now + after_s, after_s)


@dataclass(frozen=True)
class Round:
    """Round of probes in progress. `is_whole` is False if only pairs that were cut before are probed."""

    number: int
    pairs: tuple[HostPair, ...]
    began: float
    is_whole: bool


@dataclass(frozen=True)
class Cuts:
    """Pairs that cannot reach each other.

    Attributes:
        losses: Pairs of members that lost each other in this generation, and their hosts.
        former: Last interval of pairs that were healed, and the time of that. A pair that is cut again soon (a link
            that flaps) gets a longer interval than a new one.
        failures: Number of generations in which a pair of workers failed.
        said: The bad pairs and the waiting workers that the user was told of.
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
        """Return True while the answer to a suspicion is missing, so that no generation may be announced."""
        valid = self.answered_at >= self.suspected_at and now - self.answered_at <= VALID_S
        return bool(self.losses) and not valid

    def next_time(self) -> float:
        """Return when to look again if no event comes before."""
        if self.round is not None:
            return self.round.began + PATIENCE_S
        return min((one.at for one in (*self.hosts.values(), *self.workers.values())), default=math.inf)


def ordered(one: str, other: str) -> HostPair:
    return min(one, other), max(one, other)


def note_loss(cuts: Cuts, births: tuple[int, int], hosts: tuple[str, str], now: float) -> Cuts:
    """Record that one of two members, both of which may be alive, cannot reach the other."""
    pair = min(births), max(births)
    suspected_at = cuts.suspected_at if cuts.losses else now
    return replace(cuts, losses=cuts.losses | {pair: ordered(*hosts)}, suspected_at=suspected_at)


def begin_round(cuts: Cuts, hosts: Collection[str], now: float) -> Cuts:
    """Begin a round of probes if needed: all pairs of these hosts after a loss, otherwise the pairs that are due."""
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
    """Take over the answer to the current round. Also return the pairs that were healed."""
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
    """Return the answer to assume for a round without any answer, or None if it is not overdue.

    Hosts whose workers have lost each other, and hosts that were cut before, count as cut.
    """
    if cuts.round is None or now < cuts.round.began + PATIENCE_S:
        return None
    return frozenset(cuts.losses.values()) | frozenset(cuts.hosts)


def judge_losses(cuts: Cuts, is_there: Callable[[int], bool], now: float, silence_s: float = 0.0) -> Cuts:
    """Count the losses between workers whose hosts reach each other, once all members ask for places.

    A pair is ignored if one of its workers has ended.

    Args:
        silence_s: Time until a member notices that it cannot reach another one.
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
    """Let workers whose rest is over try again. One more failure makes them count as cut again."""
    over = {pair: retry for pair, retry in cuts.workers.items() if retry.at <= now}
    if not over:
        return cuts, BadPairs()
    rest = {pair: retry for pair, retry in cuts.workers.items() if pair not in over}
    failures = cuts.failures | dict.fromkeys(over, ENOUGH - 1)
    former = cuts.former | {pair: replace(retry, at=now) for pair, retry in over.items()}
    return replace(cuts, workers=rest, failures=failures, former=former), BadPairs(workers=frozenset(over))


def forget(cuts: Cuts, hosts: Collection[str], births: Collection[int]) -> Cuts:
    """Return the record without pairs of other hosts and workers."""
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
    """Return when to check a new pair. The interval is longer than last time if the pair was healed not long ago."""
    former = cuts.former.get(pair)
    if former is not None and now - former.at < _limit(cuts, slower):
        return former.later(now, _limit(cuts, slower))
    return Retry(now + slower * cuts.every_s, slower * cuts.every_s)
