# SPDX-License-Identifier: Apache-2.0
"""Control messages of rounds, and the array of integers as which each of them travels."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt


class Kind(IntEnum):
    """Kind of a control message. The comment of each kind says what `round`, `value` and `other` mean."""

    READY = 1  # to the coordinator: ready for `round` after `value` inner steps; `other` is 1 if all values are finite
    LIST = 2  # to the participants of `round`: `weights` has the steps of each worker, 0 for one that is late
    HAVE_ALL = 3  # to the coordinator: has the average of `round`; `value` is 1 if all values of it are finite
    OUTCOME = 4  # to the participants of `round`: `value` is 1 for take, 0 for drop; `other` is who had NaN, or -1
    OVER = 5  # to a late worker: `round` is over; fetch what came of rounds up to `value` from worker `other`
    FETCH = 6  # to a participant: send the fragments of the rounds from `round` to `value`
    FINISH = 7  # to the coordinator: this rank has ended its training; `value` is 1 if it has steps to exchange
    CLOSE = 8  # to all: all ranks have ended; as OVER, and `weights` has a 1 if a last round of all fragments follows
    BYE = 9  # to all: the sender sends nothing more


@dataclass(frozen=True)
class Message:
    """Control message."""

    kind: Kind
    round: int = 0
    value: int = 0
    other: int = 0
    weights: tuple[int, ...] = ()


Header = npt.NDArray[np.int64]
_FIXED = 4


def empty_header(workers: int) -> Header:
    """Return memory for one message in a world with this many workers."""
    return np.zeros(_FIXED + workers, np.int64)


def encoded(message: Message, workers: int) -> Header:
    """Return a message as integers."""
    header = empty_header(workers)
    header[:_FIXED] = message.kind, message.round, message.value, message.other
    header[_FIXED : _FIXED + len(message.weights)] = message.weights
    return header


def decoded(header: Header) -> Message:
    """Return the message that `encoded` made an array from."""
    kind, number, value, other = (int(one) for one in header[:_FIXED])
    return Message(Kind(kind), number, value, other, tuple(int(one) for one in header[_FIXED:]))
