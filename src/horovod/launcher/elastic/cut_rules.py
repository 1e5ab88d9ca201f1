# SPDX-License-Identifier: Apache-2.0
"""What follows from cuts for the members of an elastic job: when to probe, whom not to kill, what to tell. Pure.

cuts.py keeps the record, choice.py chooses who goes on, and membership.py asks both at the right moments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from horovod.common.joining.loss import ENDED, Loss
from horovod.launcher.elastic import cuts as record
from horovod.launcher.elastic.choice import BadPairs, HostPair
from horovod.launcher.elastic.cuts import Cuts
from horovod.launcher.elastic.state import REMINDER_S, State
from horovod.launcher.elastic.vocabulary import Action, CutOff, Healed, Phase, Probe, Probed, Worker

DOUBT_S = 3.5  # longer than a round of probing: time for a worker that may be cut off to show that it lives


def member_of(state: State, rank: int) -> Worker | None:
    """Return the living member that has, or had, this rank in the last generation."""
    return state.workers.get(state.members[rank]) if 0 <= rank < len(state.members) else None


def with_loss(state: State, birth: int, lost: Loss, now: float) -> Cuts:
    """Return the cuts after a member has told that one member has lost another, if a cut may explain that."""
    observer = state.workers.get(birth) if lost.by is None else member_of(state, lost.by)
    accused = member_of(state, lost.rank)
    if lost.how == ENDED or observer is None or accused is None or observer.slot[0] == accused.slot[0]:
        return state.cuts
    return record.note_loss(state.cuts, (observer.birth, accused.birth), (observer.slot[0], accused.slot[0]), now)


def concerns(cuts: Cuts, worker: Worker) -> bool:
    """Return True if a cut may be the reason why others have lost this worker."""
    is_cut = any(worker.slot[0] in pair for pair in cuts.hosts)
    return is_cut or any(worker.birth in pair for pair in cuts.losses)


def doubted(state: State, worker: Worker, now: float) -> Worker:
    """Give a worker that others have lost time to show that it lives. One behind a known cut has all the time.

    A worker that listens is asked: with an answer it counts as busy, without one for a few seconds as frozen.
    """
    if any(worker.slot[0] in pair for pair in state.cuts.hosts):
        return worker
    if not worker.listens or not state.limits.silence_s:
        return replace(worker, until=now + DOUBT_S)
    questions_left = int(DOUBT_S / REMINDER_S)
    asked = math.ceil(state.limits.silence_s / REMINDER_S) - questions_left
    return replace(worker, unanswered=max(worker.unanswered, asked))


def look(state: State, now: float) -> tuple[State, list[Action]]:
    """Forget hosts and workers that are gone, begin the probes whose time has come, and end overdue ones."""
    hosts = {*state.hosts, *(worker.slot[0] for worker in state.workers.values())}
    state = replace(state, cuts=record.forget(state.cuts, hosts, state.workers))
    actions: list[Action] = []
    if (cut := record.overdue_answer(state.cuts, now)) is not None:
        state, actions = _with_answer(state, cut, now)
    cuts, tries = record.give_another_try(state.cuts, now)
    state, told = _healed(replace(state, cuts=cuts), tries)
    occupied = {worker.slot[0] for worker in state.workers.values()}
    cuts = record.begin_round(state.cuts, occupied, now)
    probes: list[Action] = []
    if cuts.round is not None and cuts.round is not state.cuts.round:
        probes = [Probe(cuts.round.number, cuts.round.pairs)]
    return replace(state, cuts=cuts), [*actions, *told, *probes]


def take_answer(state: State, probed: Probed, now: float) -> tuple[State, list[Action]]:
    if state.cuts.round is None or state.cuts.round.number != probed.number:
        return state, []  # it came too late
    return _with_answer(state, probed.cut, now)


def _with_answer(state: State, cut: frozenset[HostPair], now: float) -> tuple[State, list[Action]]:
    """Workers that the others have lost because of a cut are not killed for that."""
    cuts, healed = record.end_round(state.cuts, cut, now)
    workers = dict(state.workers)
    for pair, hosts in cuts.losses.items():
        is_new = hosts in cuts.hosts and hosts not in state.cuts.hosts
        for one in (workers[birth] for birth in pair if birth in workers and is_new):
            if one.phase is Phase.MEMBER and one.leaves is None:
                workers[one.birth] = replace(one, until=math.inf, unanswered=0)
    return _healed(replace(state, cuts=cuts, workers=workers), healed)


def _healed(state: State, pairs: BadPairs) -> tuple[State, list[Action]]:
    """Tell the user of pairs that are not bad any more, if the user knows of them."""
    known, waiting = state.cuts.said
    news = BadPairs(pairs.hosts & known.hosts, pairs.workers & known.workers)
    if not news:
        return state, []
    rest = BadPairs(known.hosts - news.hosts, known.workers - news.workers)
    return replace(state, cuts=replace(state.cuts, said=(rest, waiting))), [Healed(news)]


def judged(state: State, now: float) -> Cuts:
    """Return the cuts once all members ask for places."""

    def is_there(birth: int) -> bool:
        return birth in state.workers and state.workers[birth].phase is Phase.READY

    return record.judge_losses(state.cuts, is_there, now, state.limits.silence_s)


def has_news(state: State) -> bool:
    """Return True if there are bad pairs of which the user does not know."""
    known, bad = state.cuts.said[0], state.cuts.bad
    return not (bad.hosts <= known.hosts and bad.workers <= known.workers)


def as_said(state: State, waiting: tuple[int, ...] = ()) -> Cuts:
    return replace(state.cuts, said=(state.cuts.bad, waiting))


def report(state: State, chosen: Sequence[Worker], left_out: Sequence[Worker]) -> tuple[State, list[Action]]:
    """Tell the user who goes on and who waits, if that has changed since the last time."""
    waiting = tuple(sorted(one.birth for one in left_out))
    if not waiting or (state.cuts.bad, waiting) == state.cuts.said:
        return state, []
    going_on = tuple(sorted(one.birth for one in chosen))
    return replace(state, cuts=as_said(state, waiting)), [CutOff(state.cuts.bad, going_on, waiting)]
