# SPDX-License-Identifier: Apache-2.0
"""Rules for events of an elastic job: what each changes in the state at once."""

from __future__ import annotations

import math
from dataclasses import replace

from horovod.common.joining.loss import Loss
from horovod.common.lineage import merged
from horovod.launcher.elastic import cut_rules
from horovod.launcher.elastic.end_rules import EndRules
from horovod.launcher.elastic.places import resettled
from horovod.launcher.elastic.turn import Turn
from horovod.launcher.elastic.vocabulary import (
    Discovered,
    Dismiss,
    Ended,
    Event,
    Excuse,
    Fails,
    HostGone,
    Leaves,
    Listens,
    Phase,
    Preempted,
    Probed,
    Ready,
    Saw,
    Tick,
    Told,
    Worker,
)

FENCE_S = 1.0  # after a peer has lost a worker: time for its end to be reported, or for it to ask for a place
LINGER_S = 5.0  # time for a worker's process to end after the worker has reported an exception


class EventRules:
    """Handling of the event of one turn."""

    def __init__(self, turn: Turn, ends: EndRules) -> None:
        self._turn = turn
        self._ends = ends

    def take(self, event: Event) -> None:
        turn = self._turn
        match event:
            case Discovered(hosts, awaited):
                self._settle_on(hosts, awaited)
            case HostGone(host, why):
                for worker in [worker for worker in turn.state.workers.values() if worker.slot[0] == host]:
                    self._ends.lose(worker, 1, why, slot_is_to_blame=False)
                turn.set(hosts={name: slots for name, slots in turn.state.hosts.items() if name != host})
            case Ready(birth, lost, fresh, seen):
                turn.set(seen=merged(turn.state.seen, seen))
                self._welcome(birth, fresh)
                if lost is not None and birth in turn.state.members:
                    self._suspect(birth, lost)
            case Ended(birth, code, how, blames_peer):
                if birth in turn.state.workers:
                    self._ends.lose(turn.state.workers[birth], code, how, blames_peer=blames_peer)
            case Preempted(birth):
                self._excuse(birth)
            case Probed():
                turn.follow(cut_rules.take_answer(turn.state, event, turn.now))
            case Saw() | Fails() | Leaves() | Told() | Listens():
                self._note(event)
            case Tick():
                pass

    def _note(self, event: Saw | Fails | Leaves | Told | Listens) -> None:
        """Record what a worker reports about itself while it goes on."""
        turn = self._turn
        if isinstance(event, Saw):
            turn.set(seen=merged(turn.state.seen, event.seen))
            return
        known = turn.state.workers.get(event.birth)
        if known is not None and isinstance(event, Fails):
            turn.put(replace(known, fails=event.why))
        elif known is not None and isinstance(event, Leaves):
            if known.phase is Phase.MEMBER:  # the other members wait for its end
                turn.put(replace(known, leaves=event, until=min(known.until, turn.now + LINGER_S)))
        elif known is not None:
            turn.put(replace(known, listens=True, unanswered=0))

    def _settle_on(self, hosts: dict[str, int], awaited: int) -> None:
        """Take over the discovered hosts, known hosts first, so that rank 0 keeps its host."""
        turn = self._turn
        kept = {host: hosts[host] for host in turn.state.hosts if host in hosts}
        turn.set(hosts=kept | hosts, awaited=awaited)
        for birth, slot in resettled(turn.state.by_seniority(), turn.state.hosts).items():
            turn.put(replace(turn.state.workers[birth], slot=slot))

    def _welcome(self, birth: int, fresh: bool) -> None:
        turn = self._turn
        known = turn.state.workers.get(birth)
        if known is None or known.phase in (Phase.LEAVING, Phase.FENCED):
            turn.actions.append(Dismiss(birth, "this worker does not belong to the job any more"))
            return
        if birth in turn.state.members:
            turn.begin_change()
            turn.set(has_trained=turn.state.has_trained or not fresh)
        if known.phase is Phase.STARTING:
            turn.set(slowest_start_s=max(turn.state.slowest_start_s, turn.now - known.started))
        known = replace(known, fails="", leaves=None)
        turn.put(replace(known, phase=Phase.READY, until=math.inf, fresh=fresh, ready_since=turn.now))

    def _suspect(self, birth: int, lost: Loss) -> None:
        """Handle the report that a member was lost.

        It may have ended, ask for a place soon, be frozen, or be cut off.
        """
        turn = self._turn
        turn.set(cuts=cut_rules.with_loss(turn.state, birth, lost, turn.now))
        accused = cut_rules.member_of(turn.state, lost.rank)
        if accused is not None and accused.phase is Phase.MEMBER and accused.until == math.inf:
            may_be_cut = cut_rules.concerns(turn.state.cuts, accused)
            turn.put(cut_rules.doubted(turn.state, accused, turn.now) if may_be_cut else self._fenced_soon(accused))

    def _fenced_soon(self, worker: Worker) -> Worker:
        return replace(worker, until=self._turn.now + FENCE_S)

    def _excuse(self, birth: int) -> None:
        turn = self._turn
        known = turn.state.workers.get(birth)
        trains = known is not None and known.phase in (Phase.MEMBER, Phase.READY) and birth in turn.state.members
        turn.actions.append(Excuse(birth, trains))
        if known is not None and trains:
            turn.put(replace(known, preempted=True))
