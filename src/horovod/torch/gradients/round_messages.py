# SPDX-License-Identifier: Apache-2.0
"""How the messages of `rounds` get to the other ranks, and what users read when they do not."""

from __future__ import annotations

from horovod._engine import EngineError, GradientTable
from horovod.common.exceptions import HorovodInternalError, HorovodMismatchError
from horovod.common.handles import translate
from horovod.common.process_sets import ProcessSet
from horovod.torch import direct
from horovod.torch.gradients.rounds import Place

_LEFT = "This rank was {place} and waited for the others to come to theirs."
_DIFFERENT = "This rank was {place}. The optimizers of all ranks must have the same parameters."
_ELSEWHERE = "This rank was {place}."
_OPTIMIZER = "the optimizer whose first parameter is"  # as the engine speaks of the exchange


def exchange(message: bytes, place: Place, first: str, process_set: ProcessSet, topic: str = "") -> bytes:
    """All ranks' messages combined. `first`: the optimizer's first parameter, which tells it from other optimizers."""
    name = f"DistributedOptimizer.{topic}{first}"
    try:
        return GradientTable.exchange(direct.host.native_member(process_set), name, message)
    except EngineError as error:
        raise _explained(translate(error, name), place, first) from None


def _explained(error: Exception, place: Place, first: str) -> Exception:
    if not isinstance(error, HorovodInternalError):
        return error
    hint = _DIFFERENT if isinstance(error, HorovodMismatchError) else _LEFT
    if hint is _DIFFERENT and str(error).count(_OPTIMIZER) == 1:
        hint = _ELSEWHERE  # the others are not in an optimizer's exchange at all
    said = str(error).replace(f"tensor '{error.operation}'", f"the exchange of {_OPTIMIZER} '{first}'")
    text = f"{said} {hint.format(place=place.value)}"
    return type(error)(text, lost_rank=error.lost_rank, operation=error.operation)
