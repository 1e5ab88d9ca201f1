# SPDX-License-Identifier: Apache-2.0
"""What several optimizers exchange with other ranks at the same time, each going on as soon as it has its answer.

A rank that waited for one optimizer before it begins with the next would block a rank that has only the next one to
reduce, and that comes to the first one later. So a conversation is a generator: it yields what it waits for and is sent
the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Protocol, TypeVar

from horovod._engine import Exchange
from horovod.torch.gradients.known_optimizers import KnownOptimizer
from horovod.torch.gradients.round_messages import Pending
from horovod.torch.gradients.rounds import Place

T = TypeVar("T")
_SLICE_S = 0.001


class Awaited(Protocol):
    """What a conversation yields: an exchange, or collectives of communication hooks."""

    def is_complete(self) -> bool:
        """Return True if `answer` would not block."""

    def wait(self, limit_s: float) -> bool:
        """Wait for at most this long. Return True if `answer` would not block."""

    def answer(self) -> bytes:
        """Wait and return the answer, all ranks' messages combined. Once only."""


Asking = Generator[Awaited, bytes, T]  # a part of a conversation with a result
Conversation = Generator[Awaited, bytes, None]
Questions = Generator[bytes, bytes, T]  # yields messages, is sent all ranks' messages combined


def ask(questions: Questions[T], place: Place, optimizer: KnownOptimizer, topic: str) -> Asking[T]:
    """Exchange what the questions yield, and return their result."""
    try:
        message = next(questions)
        while True:
            message = questions.send((yield Pending(message, place, optimizer, topic)))
    except StopIteration as end:
        result: T = end.value
        return result


def hold(conversations: Sequence[Conversation]) -> None:
    """Begin all of them, then carry each on as other ranks answer. The first failure is raised when all have ended."""
    failure: Exception | None = None
    waiting: list[tuple[Conversation, Awaited]] = []
    steps: list[tuple[Conversation, Awaited | None]] = [(conversation, None) for conversation in conversations]
    try:
        while steps or waiting:
            if not steps:
                steps.append(waiting.pop(_wait_for_any([awaited for _, awaited in waiting])))
            conversation, answered_one = steps.pop(0)
            try:
                pending = _go_on(conversation, answered_one)
            except Exception as error:
                failure = failure or error
            else:
                if pending is not None:
                    waiting.append((conversation, pending))
        if failure is not None:
            raise failure
    finally:
        del failure  # this frame and its traceback would hold each other, and with them all that callers have


def hold_one(conversation: Conversation) -> None:
    """Hold a single conversation."""
    pending = _go_on(conversation, None)
    while pending is not None:
        pending = _go_on(conversation, pending)


def _wait_for_any(awaited: Sequence[Awaited]) -> int:
    """Wait until any of them is complete, and return its place in the list."""
    exchanges = [it.exchange for it in awaited if isinstance(it, Pending) and isinstance(it.exchange, Exchange)]
    if len(exchanges) == len(awaited):
        return Exchange.wait_for_any(exchanges)
    while True:
        for place, one in enumerate(awaited):
            if one.is_complete():
                return place
        awaited[0].wait(_SLICE_S)


def _go_on(conversation: Conversation, pending: Awaited | None) -> Awaited | None:
    """Begin a conversation, or give it its answer. Return what it waits for next; None: it has ended."""
    try:
        if pending is None:
            return next(conversation)
        try:
            answer = pending.answer()
        except Exception as error:
            return conversation.throw(error)
        return conversation.send(answer)
    except StopIteration:
        return None


def in_spite_of_failures(steps: Iterable[Callable[[], None]]) -> None:
    """Run all steps, even if one fails. The first failure is raised."""
    failure: Exception | None = None
    for step in steps:
        try:
            step()
        except Exception as error:
            failure = failure or error
    try:
        if failure is not None:
            raise failure
    finally:
        # This frame and the failure's traceback would hold each other. Until Python's garbage collector runs, they
        # would keep all that the callers have: gradients in the memory of a world that is over, results of the user.
        del failure
