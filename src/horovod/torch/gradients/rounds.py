# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other about the gradients of an optimizer, and what follows from it. Pure: no tensor, no engine.

Ranks speak at the end of a backward pass that made reductions due, and in step() unless the round is complete. Their
messages are combined by Max, byte for byte, and all decide by the same answer, so they decide alike:

* What is due on any rank is reduced on all; ranks without a gradient send zeros. If nobody is in backward() any more,
  so is everything else that somebody trains: the round is complete.
* Small gradients that are due on all ranks, and are the same there, travel as one bundle; else each for itself, so that
  ranks whose gradients differ hear which one it is.
* With its first message each rank sends a checksum of its parameters: they should be the same (`parameter_check`).
* It also reports whether another optimizer of this rank has parameters of the same names: if so on any rank, all ranks
  tell the two apart by longer names (`known_optimizers`).
* Each message carries a checksum of the rank's communication hook and buckets: they must be the same (`hooks`).
* A rank in step() speaks again until the round is complete; one in backward() returns and may bring more.
* Ranks that have made different steps, or dropped different gradients, since they last spoke would mix up gradients of
  different steps from now on: all of them raise.

Zeros say nothing: a rank that has joined agrees with everybody.
"""

from __future__ import annotations

import zlib
from enum import Enum, IntEnum
from typing import NamedTuple

# How far a gradient is, in the order in which one rank's word outweighs another's; the native gradient_table knows them
# too. DONE: agreed on since the round began, and so done on all ranks or on none.
FROZEN, OPEN, OPEN_SPARSE, DUE, DUE_SPARSE, DONE = range(6)
Standings = bytes  # one for each gradient

# The head of a message. Where it says who, that is the rank plus 1.
_IN_BACKWARD, _NO_STEP, _ONE_STEP, _MORE_STEPS, _KEPT, _DROPPED, _HELD = range(7)
_SUM_BYTES = 4  # of what is held; then its complement, so that Max shows the least and the greatest
_BUNDLE = _HELD + 2 * _SUM_BYTES
_KEY_BYTES = 8  # of the bundle; then its complement
_HOOKS = _BUNDLE + 2 * _KEY_BYTES  # a checksum of the hook, 0 without one; then its complement
_LOOK = _HOOKS + 2 * _SUM_BYTES  # a Look, in a rank's first message; zeros in later ones
CHECKSUM_BYTES = 4  # of the parameters; then its complement
_NAMES, _AFTER_JOIN = 2 * CHECKSUM_BYTES, 2 * CHECKSUM_BYTES + 1  # in a Look
LOOK_BYTES = _AFTER_JOIN + 1
HEAD_BYTES = _LOOK + LOOK_BYTES
_MOST = 255
_NOTHING_HELD = _NO_HOOK = bytes(_SUM_BYTES) + bytes([_MOST] * _SUM_BYTES)


class Place(Enum):
    """Where a rank is when it speaks."""

    BACKWARD = "at the end of backward()"
    STEP = "in optimizer.step() or optimizer.synchronize()"


class Names(IntEnum):
    """How far the names of an optimizer's parameters tell it from this rank's others; the greatest of all ranks counts.

    TWINS: another optimizer has parameters of the same names, shapes and types, so that ranks could confuse the two.
    """

    OWN = 0
    SHARED = 1
    TWINS = 2


class Look(NamedTuple):
    """What a rank says once about its optimizer.

    `checksum`: of its parameters, if they are to be compared; `after_join`: because of hvd.join().
    """

    checksum: int | None = None
    after_join: bool = False
    names: Names = Names.OWN

    def packed(self) -> bytes:
        checksum = bytes(2 * CHECKSUM_BYTES) if self.checksum is None else with_complement(self.checksum)
        return checksum + bytes([self.names, self.after_join])


class Seen(NamedTuple):
    """What follows from all ranks' looks.

    `parameters_differ`: the ranks have begun with different ones, or train different ones; `after_join`: or have made
    different steps until they joined. `names`: the optimizer's, on the rank where they tell least.
    """

    parameters_differ: bool = False
    after_join: bool = False
    names: Names = Names.OWN

    @classmethod
    def of(cls, looks: bytes) -> Seen:
        """`looks`: those of all ranks, combined by Max."""
        if looks == SAID_BEFORE:
            return _NOTHING_SEEN
        checksums = looks[:_NAMES]
        differ = any(checksums) and not is_same(checksums)
        return cls(differ, bool(looks[_AFTER_JOIN]), Names(looks[_NAMES]))


SAID_BEFORE = bytes(LOOK_BYTES)
_NOTHING_SEEN = Seen()


def _table(*ones: int) -> bytes:
    return bytes(standing in ones for standing in range(256))


_IS_DONE = _table(DONE)
_IS_DUE = _table(DUE, DUE_SPARSE)
_IS_WANTED = _table(OPEN, OPEN_SPARSE, DUE, DUE_SPARSE)
_IS_TRAINED = _table(OPEN, OPEN_SPARSE, DUE, DUE_SPARSE, DONE)


class Reduce(NamedTuple):
    """Reduce those that `wanted` has a 1 for; as sparse ones those of `sparse`. `bundled`: as each has proposed.

    `hooks_differ`: the ranks have different communication hooks or buckets. `trained`: where there are hooks, has a 1
    for each gradient that some rank trains.
    """

    wanted: bytes
    sparse: tuple[int, ...]
    bundled: bool = False
    seen: Seen = _NOTHING_SEEN
    hooks_differ: bool = False
    trained: bytes = b""


class Differ(NamedTuple):
    """The ranks have come apart; `text` says how."""

    text: str


class Round(NamedTuple):
    """What a rank remembers between its messages."""

    steps: int = 0  # made since ranks last spoke
    done: int = 0  # how many gradients were done when they last spoke
    complete: bool = False  # nothing is left to be said in this round

    # What happens on this rank alone

    def stepped(self) -> Round:
        return self._replace(steps=self.steps + 1)

    def forgotten(self) -> Round:
        """The gradients of this round are of no account any more: it is over, or they were dropped."""
        return self._replace(complete=False)

    # What ranks say and hear

    def message(
        self, rank: int, place: Place, standings: Standings, bundle: int = 0, look: bytes = SAID_BEFORE, hooks: int = 0
    ) -> bytes:
        """What this rank has to say.

        `bundle`: the key of what it would bundle; `look`: its Look, in its first one; `hooks`: the checksum of its
        communication hook and buckets.
        """
        who = min(rank + 1, _MOST)
        head = bytearray(HEAD_BYTES)
        head[_IN_BACKWARD] = place is Place.BACKWARD
        head[_NO_STEP + min(self.steps, 2)] = who
        kept = standings.count(DONE)
        if kept < self.done:
            head[_DROPPED] = who
        elif kept:
            head[_KEPT] = who
        head[_HELD:_BUNDLE] = _sum_of(standings.translate(_IS_DONE)) if kept else _NOTHING_HELD
        head[_BUNDLE:_HOOKS] = _with_complement(bundle, _KEY_BYTES)
        head[_HOOKS:_LOOK] = _with_complement(hooks, _SUM_BYTES) if hooks else _NO_HOOK
        head[_LOOK:] = look
        return bytes(head) + standings

    def heard(self, answer: bytes) -> tuple[Round, Reduce | Differ]:
        """What follows from the combined messages, and what is to be remembered from here on."""
        if difference := _steps_differ(answer) or _held_differ(answer):
            return Round(), Differ(difference)
        standings = answer[HEAD_BYTES:]
        in_backward = bool(answer[_IN_BACKWARD])
        wanted = standings.translate(_IS_DUE if in_backward else _IS_WANTED)
        sparse = _numbers_of_sparse(standings, wanted)
        complete = not in_backward or not (OPEN in standings or OPEN_SPARSE in standings)
        done = len(wanted) - wanted.count(0) + standings.count(DONE)
        seen = Seen.of(answer[_LOOK:HEAD_BYTES])
        reduce = Reduce(wanted, sparse, _is_bundled(answer), seen)
        hooks = answer[_HOOKS:_LOOK]
        if hooks != _NO_HOOK:
            differ = any(hooks) and not is_same(hooks)
            reduce = reduce._replace(hooks_differ=differ, trained=standings.translate(_IS_TRAINED))
        return Round(done=done, complete=complete), reduce


def is_due(standings: Standings) -> bool:
    """Whether a backward pass has anything to tell the others."""
    return DUE in standings or DUE_SPARSE in standings


def _numbers_of_sparse(standings: Standings, wanted: bytes) -> tuple[int, ...]:
    if OPEN_SPARSE not in standings and DUE_SPARSE not in standings:
        return ()
    kinds = (OPEN_SPARSE, DUE_SPARSE)
    return tuple(number for number, it in enumerate(standings) if it in kinds and wanted[number])


def _sum_of(held: bytes) -> bytes:
    return _with_complement(zlib.crc32(held), _SUM_BYTES)


def _with_complement(number: int, size: int) -> bytes:
    text = number.to_bytes(size, "little")
    return text + bytes(_MOST - byte for byte in text)


def with_complement(checksum: int) -> bytes:
    """A checksum so that Max shows whether ranks have different ones."""
    return _with_complement(checksum, CHECKSUM_BYTES)


def is_same(said: bytes) -> bool:
    """Whether all ranks that said something with its complement said the same."""
    half = len(said) // 2
    return all(high + low == _MOST for high, low in zip(said[:half], said[half:], strict=True))


def _is_bundled(answer: bytes) -> bool:
    said = answer[_BUNDLE:_HOOKS]
    return any(said[:_KEY_BYTES]) and is_same(said)


def _rank(who: int) -> str:
    return f"rank {who - 1}" if who < _MOST else f"a rank from {_MOST - 1} on"


def _steps_differ(answer: bytes) -> str | None:
    none, one, more = answer[_NO_STEP], answer[_ONE_STEP], answer[_MORE_STEPS]
    if bool(none) + bool(one) + bool(more) <= 1:
        return None
    ahead, times = (more, "more than once") if more else (one, "")
    behind, instead = (none, "has not") if none else (one, "has once")
    return (
        f"The ranks have diverged: since they last exchanged gradients, {_rank(ahead)} has called optimizer.step() "
        f"{times + ', ' if times else ''}while {_rank(behind)} {instead}. Their parameters differ from now on. A step "
        "that one rank skips, because of a NaN for example, must be skipped by all of them: let all ranks decide "
        "together, for example with hvd.allreduce() of a flag."
    )


def _held_differ(answer: bytes) -> str | None:
    held = answer[_HELD:_BUNDLE]
    if held == _NOTHING_HELD:
        return None  # as in every round of ranks that do the same
    if is_same(held) or not any(held):
        return None
    dropped, kept = answer[_DROPPED], answer[_KEPT]
    if dropped and kept:
        who = f"{_rank(dropped)} has dropped reduced gradients before optimizer.step(), {_rank(kept)} has kept them"
    else:
        who = "they have dropped different gradients before optimizer.step()"
    return (
        f"The ranks have diverged: {who}. What one rank drops, with optimizer.zero_grad() for example, all of them "
        "must drop."
    )
