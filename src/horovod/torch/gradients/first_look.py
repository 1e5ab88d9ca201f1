# SPDX-License-Identifier: Apache-2.0
"""Comparisons that ranks make once, in the first exchange of an optimizer and in the first one of a new era.

Ranks compare their parameters, and find out whether the parameters' names tell the optimizer from others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from horovod.common import user_warnings
from horovod.common.context import default_context
from horovod.common.exceptions import HorovodMismatchError
from horovod.torch.gradients.conversations import Conversation, ask
from horovod.torch.gradients.known_optimizers import KnownOptimizer
from horovod.torch.gradients.parameter_check import AFTER_JOIN, AT_FIRST, OF_TWINS, ParameterCheck
from horovod.torch.gradients.rounds import SAID_BEFORE, Look, Names, Place, Seen

_TOPIC = "parameters."
Named = Sequence[tuple[str, torch.Tensor | None]]


class FirstLook:
    """Comparisons of one optimizer: those still to be made, and what the last one found."""

    def __init__(self, optimizer: KnownOptimizer, checks_parameters: bool) -> None:
        self._optimizer = optimizer
        self._may_check = checks_parameters
        self._checks = checks_parameters  # compare parameters in the next message
        self._checks_twins = checks_parameters  # compare in the next message if there is a twin (Names.TWINS)
        self._joins = default_context.joins  # hvd.join() calls that this optimizer has taken into account
        self._after_join = False
        self._check: ParameterCheck | None = None
        self._warning: str | None = None

    def look_around(self) -> None:
        """Decide what to compare in the first exchange of a new era.

        Compare parameters after the job's first hvd.join(), because ranks that had joined have made no steps. Compare
        twins in every era, because optimizers get their ordinals anew.
        """
        has_joined = default_context.joins != self._joins
        if self._may_check:
            self._checks = self._checks or (has_joined and not self._joins)
            self._checks_twins = True
            self._after_join = self._after_join or has_joined
        self._joins = default_context.joins

    def said(self, trained: Callable[[], Named]) -> bytes:
        """Return this rank's part of the message; `trained` returns the parameters for a ParameterCheck."""
        names = self._optimizer.names()
        if self._checks or (self._checks_twins and names is Names.TWINS):
            self._check = ParameterCheck(trained())
            return Look(self._check.checksum(), self._after_join, names).packed()
        return SAID_BEFORE if names is Names.OWN else Look(names=names).packed()

    def is_over(self) -> None:
        """Record that all ranks have received this rank's message."""
        self._checks = self._checks_twins = self._after_join = False
        self._check = None

    def find_difference(self, seen: Seen, place: Place) -> Conversation:
        """Find the parameter that differs, after the combined messages have shown that one does.

        If parameters of two optimizers have equal names, shapes and types, ranks may use the optimizers in different
        orders: then all ranks raise an error. In other cases one rank keeps a warning for warn().
        """
        check = self._check or ParameterCheck([(name, None) for name in self._optimizer.parameter_names])
        if seen.names is Names.TWINS and not seen.after_join:
            difference = yield from ask(check.find(), place, self._optimizer, _TOPIC)
            if difference is not None:
                self._optimizer.disagree()  # so that ranks compare again if the program catches the error and goes on
                raise HorovodMismatchError(difference.described(OF_TWINS, self._both()))
            return
        ranks = self._optimizer.process_set.ranks or ()
        difference = yield from ask(
            check.find_with_ranks(ranks, default_context.topology.rank), place, self._optimizer, _TOPIC
        )
        if difference is not None:
            self._warning = difference.described(AFTER_JOIN if seen.after_join else AT_FIRST)
            if seen.names is not Names.OWN:
                self._warning += f" It is the name of a parameter of two optimizers: {self._both()}."

    def warn(self) -> None:
        """Show the warning about the difference that was found; only one rank has one."""
        warning, self._warning = self._warning, None
        if warning is not None:
            user_warnings.warn(warning)

    def _both(self) -> str:
        others = self._optimizer.others_of_same_names()
        if not others:
            return f"{self._optimizer.description}, and another rank has one more optimizer with this name"
        both = " and ".join(it.description for it in (self._optimizer, *others))
        return f"{both} have parameters of the same names"
