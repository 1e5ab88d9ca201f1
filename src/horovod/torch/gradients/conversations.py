# SPDX-License-Identifier: Apache-2.0
"""Exchanges of several optimizers with other ranks at one time, each of which continues as soon as its answer arrives.

A rank must not wait for one optimizer before it begins with the next: another rank may reduce only the next one now and
the first one later, and would block. So a conversation is a generator: it yields what it waits for and is sent the
answer.
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
    """Object that a conversation yields: an exchange, or collectives of communication hooks."""

    def is_complete(self) -> bool:
        """Return True if `answer` would not block."""

    def wait(self, limit_s: float) -> bool:
        """Wait for at most `limit_s`. Return True if `answer` would not block."""

    def answer(self) -> bytes:
        """Wait and return the answer, all ranks' messages combined. Call it only once."""


Asking = Generator[Awaited, bytes, T]  # part of a conversation, with a result
Conversation = Generator[Awaited, bytes, None]
Questions = Generator[bytes, bytes, T]  # yields messages and is sent all ranks' messages combined


def ask(questions: Questions[T], place: Place, optimizer: KnownOptimizer, topic: str) -> Asking[T]:
    """Exchange the messages that `questions` yields, and return its result."""
    try:
        message = next(questions)
        while True:
            message = questions.send((yield Pending(message, place, optimizer, topic)))
    except StopIteration as end:
        result: T = end.value
        return result


def hold(conversations: Sequence[Conversation]) -> None:
    """Begin all conversations, continue each when its answer arrives, then raise the first failure."""
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
        del failure  # the frame and its traceback refer to each other, and would keep alive all that the callers hold


def hold_one(conversation: Conversation) -> None:
    """Run a single conversation to its end."""
    pending = _go_on(conversation, None)
    while pending is not None:
        pending = _go_on(conversation, pending)


def _wait_for_any(awaited: Sequence[Awaited]) -> int:
    """Wait until one of them is complete, and return its index in the list."""
    exchanges = [it.exchange for it in awaited if isinstance(it, Pending) and isinstance(it.exchange, Exchange)]
    if len(exchanges) == len(awaited):
        return Exchange.wait_for_any(exchanges)
    while True:
        for place, one in enumerate(awaited):
            if one.is_complete():
                return place
        awaited[0].wait(_SLICE_S)


def _go_on(conversation: Conversation, pending: Awaited | None) -> Awaited | None:
    """Begin a conversation, or send it its answer. Return what it waits for next, or None if it has ended."""
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
    """Run all steps, even if one fails, then raise the first failure."""
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
        # Break the cycle of this frame and the failure's traceback, which would keep alive all that the callers hold.
        # Among this may be gradients in the memory of a world that has ended.
        del failure
