# SPDX-License-Identifier: Apache-2.0
"""Membership decisions of an elastic job, as a pure function of (state, event, now). driving.py carries them out.

    starting --asks for a place--> ready --announced--> member --a peer was lost, or a commit--> ready --> member ...
    any of them --its slot was taken away, or it was preempted--> leaving --> ended
    member --a peer has lost it, and it does not ask for a place itself--> fenced (killed) --> ended
    member --an exception ends it, but its process does not end in time--> fenced (killed) --> ended

Workers are identified by their birth ids, because a rank is only valid in one generation. A generation is announced
once every living member of the last one waits for it, so two groups never train at once. Spares are workers that are
ready while there is no room for them.
"""

from __future__ import annotations

from horovod.launcher.elastic import cut_rules
from horovod.launcher.elastic.end_rules import EndRules
from horovod.launcher.elastic.event_rules import EventRules
from horovod.launcher.elastic.generation_rules import GenerationRules
from horovod.launcher.elastic.state import State
from horovod.launcher.elastic.turn import Turn
from horovod.launcher.elastic.upkeep_rules import UpkeepRules
from horovod.launcher.elastic.vocabulary import Action, Event


def decide(state: State, event: Event, now: float) -> tuple[State, list[Action]]:
    """Return the state after an event, and the actions to take."""
    if state.over:
        return state, []
    turn = Turn(state, now)
    ends = EndRules(turn)
    EventRules(turn, ends).take(event)
    if not turn.state.over:
        _settle(turn, UpkeepRules(turn, ends))
    return turn.state, turn.actions


def _settle(turn: Turn, upkeep: UpkeepRules) -> None:
    """Do what follows from the event, and what is due by now."""
    upkeep.kill_overdue()
    upkeep.call_awaited_members()
    upkeep.dismiss_newcomers_without_slot()
    if upkeep.is_hopeless():
        return
    upkeep.start_workers()
    turn.follow(cut_rules.look(turn.state, turn.now))
    GenerationRules(turn).form()
    upkeep.watch_time()
    upkeep.remind_members()
