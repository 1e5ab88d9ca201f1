# SPDX-License-Identifier: Apache-2.0
"""What ranks compare once, in the first exchange of an optimizer and in the first one of a new era.

Do they have the same parameters, and do names tell the optimizer from others?
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
    """The comparisons of one optimizer: which are still to be made, and what they have found."""

    def __init__(self, optimizer: KnownOptimizer, checks_parameters: bool) -> None:
        self._optimizer = optimizer
        self._may_check = checks_parameters
        self._checks = checks_parameters  # with the next message
        self._checks_twins = checks_parameters  # with the next message, if another optimizer could be confused with it
        self._joins = default_context.joins  # that this optimizer knows of
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
        """Return what this rank has to say in its message. `trained`: gives what ParameterCheck takes."""
        names = self._optimizer.names()
        if self._checks or (self._checks_twins and names is Names.TWINS):
            self._check = ParameterCheck(trained())
            return Look(self._check.checksum(), self._after_join, names).packed()
        return SAID_BEFORE if names is Names.OWN else Look(names=names).packed()

    def is_over(self) -> None:
        """Note that all ranks have heard what this one had to say."""
        self._checks = self._checks_twins = self._after_join = False
        self._check = None

    def find_difference(self, seen: Seen, place: Place) -> Conversation:
        """Find which parameter differs. All ranks have heard that one does.

        Optimizers whose parameters have the same names, shapes and types may have been swapped: then all ranks raise.
        """
        check = self._check or ParameterCheck([(name, None) for name in self._optimizer.parameter_names])
        if seen.names is Names.TWINS and not seen.after_join:
            difference = yield from ask(check.find(), place, self._optimizer, _TOPIC)
            if difference is not None:
                self._optimizer.disagree()  # so that it is an error again, should the program go on
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
        """Warn of what was found, on the one rank that is to do so."""
        warning, self._warning = self._warning, None
        if warning is not None:
            user_warnings.warn(warning)

    def _both(self) -> str:
        others = self._optimizer.others_of_same_names()
        if not others:
            return f"{self._optimizer.description}, and another rank has one more optimizer with this name"
        both = " and ".join(it.description for it in (self._optimizer, *others))
        return f"{both} have parameters of the same names"
