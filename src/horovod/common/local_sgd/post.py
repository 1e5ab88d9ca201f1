# SPDX-License-Identifier: Apache-2.0
"""Messages between the members of a session, over the engine's tagged sends and receives. Nothing here blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy.typing as npt

from horovod.common.arrays import Array, NumpyAdapter
from horovod.common.context import default_context
from horovod.common.handles import Pending
from horovod.common.local_sgd.messages import Header, Kind, Message, decoded, empty_header, encoded
from horovod.common.ops import Collectives

collectives: Collectives[Array] = Collectives(default_context, NumpyAdapter())


class Channel(IntEnum):
    """Purpose of a message. Messages of one purpose arrive in the order in which they were sent."""

    CONTROL = 0
    SHARE = 1  # a range of one worker's difference, for its owner
    RESULT = 2  # the average of a range, from its owner
    STATE = 3  # weights and momentum of a fragment, for a late worker
    PART = 4  # weights and momentum of a part of a fragment, for the ranks of one host


# The first tag of a session is this plus a multiple of the number of channels, above what programs use themselves.
FIRST_TAG = 1 << 48


class Post:
    """Sends and receives of one session on one rank.

    Attributes:
        bytes_sent: Bytes of values, without control messages.
        bytes_received: Bytes of values, without control messages.
    """

    def __init__(self, ranks: Sequence[int], me: int, number: int) -> None:
        """Begin to receive control messages.

        Args:
            ranks: The rank of each member.
            me: This rank's index among the members.
            number: Number of this session, which no other session of two of its members has.
        """
        self.me = me
        self.bytes_sent = 0
        self.bytes_received = 0
        self._ranks = ranks
        self._tag = FIRST_TAG + number * len(Channel)
        self._to_me: deque[Message] = deque()
        self._sends: list[Pending] = []
        self._headers: dict[int, tuple[Header, Pending]] = {}
        for member in range(len(ranks)):
            if member != me:
                self._expect_message(member)

    def tell(self, member: int, message: Message) -> None:
        """Send a control message to a member, which may be this one."""
        if member == self.me:
            self._to_me.append(message)
        else:
            self._send(member, Channel.CONTROL, encoded(message, len(self._ranks)))

    def send(self, member: int, channel: Channel, values: npt.NDArray[Any]) -> None:
        """Send values, which must not change any more."""
        self.bytes_sent += values.nbytes
        self._send(member, channel, values)

    def receive(self, member: int, channel: Channel, target: npt.NDArray[Any]) -> Pending:
        """Begin to receive values into an array."""
        self.bytes_received += target.nbytes
        return collectives.recv(target, self._ranks[member], self._tag + channel)

    def messages(self) -> list[tuple[int, Message]]:
        """Return the control messages that have arrived, and drop the memory of messages that have been sent."""
        found = [(self.me, message) for message in self._to_me]
        self._to_me.clear()
        for member, (header, pending) in list(self._headers.items()):
            if not pending.is_complete():
                continue
            pending.wait()
            message = decoded(header)
            found.append((member, message))
            del self._headers[member]
            if message.kind != Kind.BYE:
                self._expect_message(member)
        self._sends = [pending for pending in self._sends if not is_done(pending)]
        return found

    @property
    def is_over(self) -> bool:
        """True once all other members have said BYE and all messages of this rank have left."""
        return not self._headers and not self._sends

    def abandon(self) -> None:
        """Keep the memory of operations in flight until the engine has ended them."""
        handles = collectives.handles
        for pending in [*self._sends, *(pending for _, pending in self._headers.values())]:
            handles.add(pending)

    def _expect_message(self, member: int) -> None:
        header = empty_header(len(self._ranks))
        tag = self._tag + Channel.CONTROL
        self._headers[member] = header, collectives.recv(header, self._ranks[member], tag)

    def _send(self, member: int, channel: Channel, values: npt.NDArray[Any]) -> None:
        self._sends.append(collectives.send(values, self._ranks[member], self._tag + channel))


def is_done(pending: Pending) -> bool:
    """Return True if an operation has completed; raise its error if it failed. Do not call this again after True."""
    if not pending.is_complete():
        return False
    pending.wait()
    return True
