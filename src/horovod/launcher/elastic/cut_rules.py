# SPDX-License-Identifier: Apache-2.0
"""Rules for hosts that cannot reach each other: when to probe, which workers not to kill, what to report.

Pure functions only. cuts.py keeps the record and choice.py chooses the workers that go on; membership.py calls both.
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

DOUBT_S = 3.5  # longer than a round of probes: time for a worker that may be unreachable to show that it is alive


def member_of(state: State, rank: int) -> Worker | None:
    """Return the living member that has or had this rank in the last generation."""
    return state.workers.get(state.members[rank]) if 0 <= rank < len(state.members) else None


def with_loss(state: State, birth: int, lost: Loss, now: float) -> Cuts:
    """Return the cuts after the report that one member lost another. They change only if a cut may explain the loss."""
    observer = state.workers.get(birth) if lost.by is None else member_of(state, lost.by)
    accused = member_of(state, lost.rank)
    if lost.how == ENDED or observer is None or accused is None or observer.slot[0] == accused.slot[0]:
        return state.cuts
    return record.note_loss(state.cuts, (observer.birth, accused.birth), (observer.slot[0], accused.slot[0]), now)


def concerns(cuts: Cuts, worker: Worker) -> bool:
    """Return True if a cut may be the reason why other members lost this worker."""
    is_cut = any(worker.slot[0] in pair for pair in cuts.hosts)
    return is_cut or any(worker.birth in pair for pair in cuts.losses)


def doubted(state: State, worker: Worker, now: float) -> Worker:
    """Return the worker with more time to show that it is alive. Behind a known cut, its time is unlimited.

    A worker that listens is asked: it counts as busy if it answers, and as frozen if it does not answer for a few
    seconds.
    """
    if any(worker.slot[0] in pair for pair in state.cuts.hosts):
        return worker
    if not worker.listens or not state.limits.silence_s:
        return replace(worker, until=now + DOUBT_S)
    questions_left = int(DOUBT_S / REMINDER_S)
    asked = math.ceil(state.limits.silence_s / REMINDER_S) - questions_left
    return replace(worker, unanswered=max(worker.unanswered, asked))


def look(state: State, now: float) -> tuple[State, list[Action]]:
    """Drop hosts and workers that are gone, begin due probes, and complete rounds whose answer is overdue."""
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
        return state, []  # the answer came too late
    return _with_answer(state, probed.cut, now)


def _with_answer(state: State, cut: frozenset[HostPair], now: float) -> tuple[State, list[Action]]:
    """Return the state after a round of probes. Workers that were lost because of a cut are not killed."""
    cuts, healed = record.end_round(state.cuts, cut, now)
    workers = dict(state.workers)
    for pair, hosts in cuts.losses.items():
        is_new = hosts in cuts.hosts and hosts not in state.cuts.hosts
        for one in (workers[birth] for birth in pair if birth in workers and is_new):
            if one.phase is Phase.MEMBER and one.leaves is None:
                workers[one.birth] = replace(one, until=math.inf, unanswered=0)
    return _healed(replace(state, cuts=cuts, workers=workers), healed)


def _healed(state: State, pairs: BadPairs) -> tuple[State, list[Action]]:
    """Report pairs that reach each other again to the user, if they were reported as bad before."""
    known, waiting = state.cuts.said
    news = BadPairs(pairs.hosts & known.hosts, pairs.workers & known.workers)
    if not news:
        return state, []
    rest = BadPairs(known.hosts - news.hosts, known.workers - news.workers)
    return replace(state, cuts=replace(state.cuts, said=(rest, waiting))), [Healed(news)]


def judged(state: State, now: float) -> Cuts:
    """Return the cuts after counting losses, once all members ask for places."""

    def is_there(birth: int) -> bool:
        return birth in state.workers and state.workers[birth].phase is Phase.READY

    return record.judge_losses(state.cuts, is_there, now, state.limits.silence_s)


def has_news(state: State) -> bool:
    """Return True if there are bad pairs that the user was not told of."""
    known, bad = state.cuts.said[0], state.cuts.bad
    return not (bad.hosts <= known.hosts and bad.workers <= known.workers)


def as_said(state: State, waiting: tuple[int, ...] = ()) -> Cuts:
    return replace(state.cuts, said=(state.cuts.bad, waiting))


def report(state: State, chosen: Sequence[Worker], left_out: Sequence[Worker]) -> tuple[State, list[Action]]:
    """Tell the user which workers go on and which wait, if that has changed since the last message."""
    waiting = tuple(sorted(one.birth for one in left_out))
    if not waiting or (state.cuts.bad, waiting) == state.cuts.said:
        return state, []
    going_on = tuple(sorted(one.birth for one in chosen))
    return replace(state, cuts=as_said(state, waiting)), [CutOff(state.cuts.bad, going_on, waiting)]
