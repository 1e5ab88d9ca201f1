# SPDX-License-Identifier: Apache-2.0
"""How the messages of `rounds` get to the other ranks, and what users read when they do not."""

from __future__ import annotations

from horovod._engine import EngineError, Exchange
from horovod.common.exceptions import HorovodInternalError, HorovodMismatchError
from horovod.common.handles import translate
from horovod.torch import direct
from horovod.torch.gradients import differing_parameters
from horovod.torch.gradients.known_optimizers import KnownOptimizer
from horovod.torch.gradients.rounds import Place

_LEFT = "This rank was {place} and waited for the others to come to theirs."
_DIFFERENT = "This rank was {place}. The optimizers of all ranks must have the same parameters{difference}."
_ELSEWHERE = "This rank was {place}."
_OPTIMIZER = "the optimizer whose first parameter is"  # as the engine speaks of the exchange


class Pending:
    """An exchange of one optimizer that has begun: all ranks' messages, combined."""

    __slots__ = ("_is_first", "_name", "_optimizer", "_place", "exchange")

    def __init__(self, message: bytes, place: Place, optimizer: KnownOptimizer, topic: str = "") -> None:
        self._place = place
        self._optimizer = optimizer
        self._is_first = not optimizer.has_agreed
        self._name = optimizer.exchange_name(topic)
        try:
            self.exchange = Exchange(direct.host.native_member(optimizer.process_set), self._name, message)
        except EngineError as error:
            raise self._explained(translate(error, self._name)) from None

    def answer(self) -> bytes:
        """Wait for the other ranks' messages. Once only."""
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
        if error.count(_OPTIMIZER) == 1:  # the others are not in an optimizer's exchange at all
            return _ELSEWHERE.format(place=self._place.value)
        found = differing_parameters.find(self._optimizer, error) if self._is_first else None
        return _DIFFERENT.format(place=self._place.value, difference=f": {found}" if found else "")
