# SPDX-License-Identifier: Apache-2.0
"""Transport of the messages of `rounds` to the other ranks, and the errors that users see when it fails."""

from __future__ import annotations

from contextlib import suppress

from horovod._engine import EngineError, Exchange
from horovod.common.context import default_context
from horovod.common.exceptions import HorovodInternalError, HorovodMismatchError
from horovod.common.handles import translate
from horovod.torch import direct
from horovod.torch.gradients import differing_parameters
from horovod.torch.gradients.known_optimizers import KnownOptimizer, hooks_in_use
from horovod.torch.gradients.polled_exchange import PolledExchange
from horovod.torch.gradients.rounds import Place

_LEFT = "This rank was {place} and waited for the others to come to theirs."
_DIFFERENT = "This rank was {place}. The optimizers of all ranks must have the same parameters{difference}."
_ELSEWHERE = "This rank was {place}."
_OPTIMIZER = "the optimizer whose first parameter is"  # the words by which the engine's error describes the exchange


class Pending:
    """Exchange that one optimizer has begun; its answer is all ranks' messages, combined with Max."""

    __slots__ = ("_is_first", "_name", "_optimizer", "_place", "exchange")

    def __init__(self, message: bytes, place: Place, optimizer: KnownOptimizer, topic: str = "") -> None:
        self._place = place
        self._optimizer = optimizer
        self._is_first = not optimizer.has_agreed
        self._name = optimizer.exchange_name(topic)
        try:
            self.exchange = self._begin(message)
        except EngineError as error:
            raise self._explained(translate(error, self._name)) from None

    def _begin(self, message: bytes) -> Exchange | PolledExchange:
        process_set = self._optimizer.process_set
        if hooks_in_use():
            return PolledExchange(default_context.membership_of(process_set), self._name, message)
        return Exchange(direct.host.native_member(process_set), self._name, message)

    def is_complete(self) -> bool:
        """Return True if `answer` would not block. Use it only while communication hooks are in use."""
        return isinstance(self.exchange, PolledExchange) and self.exchange.is_complete()

    def wait(self, limit_s: float) -> bool:
        """Wait for at most `limit_s`. Return True if the answer is there. Use it only while hooks are in use."""
        if isinstance(self.exchange, PolledExchange):
            with suppress(EngineError):  # `answer` raises it
                self.exchange.wait(limit_s)
        return self.is_complete()

    def answer(self) -> bytes:
        """Wait for the other ranks' messages and return the answer. Call it only once."""
        try:
            return self.exchange.finish()
        except EngineError as error:
            raise self._explained(translate(error, self._name)) from None

    def _explained(self, error: Exception) -> Exception:
        if not isinstance(error, HorovodInternalError):
            return error
        hint = _LEFT.format(place=self._place.value)
        if isinstance(error, HorovodMismatchError):
            hint = self._hint_of_mismatch(str(error))
        exchange = f"the exchange of {_OPTIMIZER} '{self._optimizer.first}'"
        said = str(error).replace(f"tensor '{error.operation}'", exchange)
        return type(error)(f"{said} {hint}", lost_rank=error.lost_rank, operation=error.operation)

    def _hint_of_mismatch(self, error: str) -> str:
        if error.count(_OPTIMIZER) == 1:  # the other ranks are not in an optimizer's exchange
            return _ELSEWHERE.format(place=self._place.value)
        found = differing_parameters.find(self._optimizer, error) if self._is_first else None
        return _DIFFERENT.format(place=self._place.value, difference=f": {found}" if found else "")
