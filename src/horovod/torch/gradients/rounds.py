# SPDX-License-Identifier: Apache-2.0
"""Messages in which ranks report the state of an optimizer's gradients, and the decision that follows from them.

The code here is pure: it uses neither tensors nor the engine. A rank sends a message at the end of a backward pass that
made gradients due, and in step() unless the round is complete. The ranks' messages are combined byte by byte with Max.
Every rank decides from the combined message alone, so all ranks decide alike:

* A gradient that is due on any rank is reduced on all ranks; ranks without this gradient send zeros. Once no rank is in
  backward(), every other gradient that any rank trains is reduced, too, and the round is complete.
* Small gradients travel as one bundle if the same ones are due on all ranks. Otherwise each travels alone, so that
  the engine can name the gradient that differs.
* With its first message each rank sends a checksum of its parameters, which should be equal (`parameter_check`).
* Each rank also reports whether another of its optimizers has parameters of equal names. If any rank has one, all ranks
  use longer names to tell the two optimizers apart (`known_optimizers`).
* Each message carries a checksum of the rank's communication hook and buckets, which must be equal (`hooks`).
* A rank in step() sends messages until the round is complete. A rank in backward() returns after one, because later
  passes may make more gradients due.
* If ranks have made different steps or dropped different gradients since the last exchange, they would mix up gradients
  of different steps from now on: all ranks raise an error.

Zeros are neutral in Max, so a rank that has joined, which contributes zeros, agrees with all others.
"""

from __future__ import annotations

import zlib
from enum import Enum, IntEnum
from typing import NamedTuple

# States of a gradient in a round, ascending by precedence: the maximum over the ranks decides.
# The native gradient_table uses these numbers, too.
# DONE means that ranks have agreed to reduce it in this round, so it is done on all ranks or on none.
FROZEN, OPEN, OPEN_SPARSE, DUE, DUE_SPARSE, DONE = range(6)
Standings = bytes  # one state for each gradient, in the order of their numbers

# Offsets of the fields at the head of a message. A one-byte field that names a rank holds that rank plus 1.
_IN_BACKWARD, _NO_STEP, _ONE_STEP, _MORE_STEPS, _KEPT, _DROPPED, _HELD = range(7)
_SUM_BYTES = 4  # size of the checksum of done gradients; its complement follows, so that Max yields the minimum, too
_BUNDLE = _HELD + 2 * _SUM_BYTES
_KEY_BYTES = 8  # size of the bundle's key; its complement follows
_HOOKS = _BUNDLE + 2 * _KEY_BYTES  # checksum of the communication hook, 0 without one; its complement follows
_LOOK = _HOOKS + 2 * _SUM_BYTES  # a packed Look in a rank's first message, zeros in later ones
CHECKSUM_BYTES = 4  # size of the parameters' checksum; its complement follows
_NAMES, _AFTER_JOIN = 2 * CHECKSUM_BYTES, 2 * CHECKSUM_BYTES + 1  # offsets in a packed Look
LOOK_BYTES = _AFTER_JOIN + 1
HEAD_BYTES = _LOOK + LOOK_BYTES
_MOST = 255
_NOTHING_HELD = _NO_HOOK = bytes(_SUM_BYTES) + bytes([_MOST] * _SUM_BYTES)


class Place(Enum):
    """Point in the program from which a rank sends its message."""

    BACKWARD = "at the end of backward()"
    STEP = "in optimizer.step() or optimizer.synchronize()"


class Names(IntEnum):
    """Degree to which an optimizer's parameter names collide with those of this rank's other optimizers.

    OWN: no name collides. SHARED: another optimizer has a parameter of an equal name. TWINS: another optimizer has
    parameters of equal names, shapes and types, so that ranks could confuse the two. The maximum over all ranks counts.
    """

    OWN = 0
    SHARED = 1
    TWINS = 2


class Look(NamedTuple):
    """Part of a message that a rank sends only once about its optimizer.

    `checksum` covers the rank's parameters, and is None if ranks need not compare them. `after_join` is True if they
    compare because of hvd.join().
    """

    checksum: int | None = None
    after_join: bool = False
    names: Names = Names.OWN

    def packed(self) -> bytes:
        checksum = bytes(2 * CHECKSUM_BYTES) if self.checksum is None else with_complement(self.checksum)
        return checksum + bytes([self.names, self.after_join])


class Seen(NamedTuple):
    """Result of combining all ranks' Looks.

    `parameters_differ` is True if ranks have different values or train different parameters. `after_join` is True if
    they compared after hvd.join(). `names` is the worst collision of names that any rank reported.
    """

    parameters_differ: bool = False
    after_join: bool = False
    names: Names = Names.OWN

    @classmethod
    def of(cls, looks: bytes) -> Seen:
        """Return the result for `looks`, all ranks' packed Looks combined with Max."""
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
    """Decision to reduce gradients.

    `wanted` has a 1 for each gradient to reduce; `sparse` lists the numbers of those reduced as sparse gradients. If
    `bundled`, each rank sends the bundle that it proposed. If `hooks_differ`, ranks have different communication hooks
    or buckets. `trained` has a 1 for each gradient that any rank trains; it is set only if there are hooks.
    """

    wanted: bytes
    sparse: tuple[int, ...]
    bundled: bool = False
    seen: Seen = _NOTHING_SEEN
    hooks_differ: bool = False
    trained: bytes = b""


class Differ(NamedTuple):
    """Decision to raise an error, because the ranks have diverged; `text` says how."""

    text: str


class Round(NamedTuple):
    """State that a rank keeps between its messages."""

    steps: int = 0  # steps made since the last exchange
    done: int = 0  # gradients that were done after the last exchange
    complete: bool = False  # True if no further message is needed in this round

    # Events on this rank

    def stepped(self) -> Round:
        return self._replace(steps=self.steps + 1)

    def forgotten(self) -> Round:
        """Return the state after the gradients of this round were dropped, or after the round has ended."""
        return self._replace(complete=False)

    # Messages

    def message(
        self, rank: int, place: Place, standings: Standings, bundle: int = 0, look: bytes = SAID_BEFORE, hooks: int = 0
    ) -> bytes:
        """Return this rank's message.

        `bundle` is the key of the bundle that this rank proposes, or 0. `look` is a packed Look in the first message.
        `hooks` is the checksum of the rank's communication hook and buckets, or 0 without a hook.
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
        """Decide from the ranks' combined messages. Return the state to keep and the decision."""
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
    """Return True if a gradient is due, so that this rank has to send a message at the end of a backward pass."""
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
    """Return a checksum followed by its complement, so that Max shows whether ranks have different ones."""
    return _with_complement(checksum, CHECKSUM_BYTES)


def is_same(said: bytes) -> bool:
    """Return True if all ranks that sent a value with its complement sent an equal one; `said` is the maximum."""
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
        return None  # the common case: no rank keeps gradients across steps
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
