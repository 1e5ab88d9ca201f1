# SPDX-License-Identifier: Apache-2.0
"""Identities that tell the optimizers of a process apart and are equal on all ranks.

Ranks match gradients by name. Two optimizers may have parameters of equal names (a generator and a discriminator).
So each optimizer has an identity: its process set, a digest of its parameters' names, shapes and types, and an ordinal
among the optimizers with this digest. Ordinals follow the order of first exchanges in this era, so that an optimizer
that one rank makes and never uses does not count, nor does one that was used before a new worker joined the job.
Optimizers that one backward() uses for the first time are counted in the order in which they were made.

The first exchange of an optimizer has its identity in its name. In this exchange each rank reports whether another of
its optimizers has a parameter of the same name. If any rank reports one, all ranks append the identity to the names of
the optimizer's gradients.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
import threading
import weakref
from collections import Counter
from typing import NamedTuple

import torch

from horovod.common import waits
from horovod.common.context import default_context
from horovod.common.process_sets import ProcessSet
from horovod.torch.gradients.rounds import Names

_DIGEST_BYTES = 4

_lock = threading.Lock()
_numbers = itertools.count()
_living: weakref.WeakSet[KnownOptimizer] = weakref.WeakSet()
_hooked: weakref.WeakSet[KnownOptimizer] = weakref.WeakSet()  # optimizers with a communication hook
_changes = 0  # counts changes of the set of living optimizers and of their parameters
_used: Counter[tuple[int | None, str]] = Counter()  # optimizers identified in this era, by process set and digest
_era = -1


class Identity(NamedTuple):
    """Identity of an optimizer, equal on all ranks of its process set."""

    digest: str
    ordinal: int

    def __str__(self) -> str:
        return f"{self.digest}.{self.ordinal}"


def describe(optimizer: torch.optim.Optimizer) -> str:
    """Return an optimizer's class and the user's line of code that makes it."""
    return f"{type(optimizer).__name__} made at {waits.line_of(sys._getframe())}"


class KnownOptimizer:
    """One optimizer of this process: its identity, and how far ranks have agreed on its parameters' names."""

    def __init__(self, process_set: ProcessSet, description: str) -> None:
        """Register the optimizer; `description` is what error messages show to the user."""
        self.number = next(_numbers)  # in the order of construction
        self.description = description
        self.process_set = process_set
        self._named: list[tuple[str, torch.Tensor]] = []
        self._era = default_context.era
        self._identity: Identity | None = None
        self._agreed = 0  # number of parameters, counted from the first, whose names ranks have agreed on
        self._has_long_names = False
        self._sharing: tuple[int, bool] = (-1, False)  # value of `_changes` when it was computed, and the result
        with _lock:
            _living.add(self)

    def add(self, name: str, parameter: torch.Tensor) -> None:
        """Register one more parameter, whose name ranks still have to agree on."""
        global _changes
        with _lock:
            self._named.append((name, parameter))
            _changes += 1

    def forget(self) -> None:
        """Unregister the optimizer, so that its names no longer collide with those of others."""
        global _changes
        with _lock:
            _living.discard(self)
            _hooked.discard(self)
            _changes += 1

    def use_hook(self) -> None:
        """Record that the optimizer has a communication hook."""
        with _lock:
            _hooked.add(self)

    # Names

    @property
    def first(self) -> str:
        """Name of the first parameter."""
        return self._named[0][0]

    @property
    def parameter_names(self) -> list[str]:
        return [name for name, _ in self._named]

    @property
    def suffix(self) -> str:
        """Suffix that ranks append to the names of gradients if another optimizer has a parameter of the same name."""
        return f".{self._identity}"

    @property
    def has_agreed(self) -> bool:
        """Return True if ranks have agreed on the names of all parameters in this era."""
        return self._agreed == len(self._named)

    @property
    def bundle_name(self) -> str:
        return f"DistributedOptimizer.bundle.{self.first}{self.suffix if self._has_long_names else ''}"

    @property
    def described_as(self) -> str:
        """Description of the optimizer for error messages."""
        return f"the optimizer whose first parameter is {self.first!r}"

    def hook_name(self, stage: str) -> str:
        """Return the name of one collective (`stage`) of this optimizer's communication hook."""
        return f"hook.{self.first}.{self._identify()}.{stage}"

    def exchange_name(self, topic: str = "") -> str:
        """Return the name of this optimizer's exchange about a topic."""
        identity = ""
        if not self._agreed or self._has_long_names:
            identity = f" ({len(self._named)} parameters, {self._identify()})"
        return f"DistributedOptimizer.{topic}{self.first}{identity}"

    def names(self) -> Names:
        """Return this rank's report about name collisions, for its message to the other ranks."""
        if self.has_agreed:
            return Names.OWN
        self._identify()
        others = self.others_of_same_names()
        if any(it._digest() == self._digest() for it in others):
            return Names.TWINS
        return Names.SHARED if others else Names.OWN

    def agree(self, names: Names) -> list[int]:
        """Apply the combined report of all ranks. Return the numbers of the parameters whose names get the suffix."""
        new = range(self._agreed, len(self._named))
        if not self._agreed:
            self._has_long_names = names is not Names.OWN
        self._agreed = len(self._named)
        return [] if names is Names.OWN else list(new)

    def disagree(self) -> None:
        """Make the next exchange a first one again, so that ranks compare names once more."""
        self._agreed = 0

    def enter_era(self) -> bool:
        """Drop the agreements of the last era if a new one has begun. Return True if it has."""
        if self._era == default_context.era:
            return False
        self._era = default_context.era
        self._identity = None
        self._agreed = 0
        self._has_long_names = False
        return True

    # Others

    def others_of_same_names(self) -> list[KnownOptimizer]:
        """Return this rank's other optimizers with a parameter of the same name in the same process set."""
        mine = {name for name, _ in self._named}
        same_set = self.process_set.process_set_id
        return [
            it
            for it in self._others()
            if it.process_set.process_set_id == same_set and not mine.isdisjoint(name for name, _ in it._named)
        ]

    @property
    def shares_parameters(self) -> bool:
        """Return True if another optimizer has one of these parameters: the two must not reduce it at the same time."""
        if self._sharing[0] != _changes:
            self._sharing = (_changes, any(self.shares_with(it) for it in self._others()))
        return self._sharing[1]

    def shares_with(self, other: KnownOptimizer) -> bool:
        """Return True if this optimizer and the other one have a parameter in common."""
        mine = {id(parameter) for _, parameter in self._named}
        return not mine.isdisjoint(id(parameter) for _, parameter in other._named)

    def _others(self) -> list[KnownOptimizer]:
        with _lock:
            return sorted((it for it in _living if it is not self), key=lambda it: it.number)

    # Identity

    def described(self) -> dict[str, str]:
        """Return the types and shapes of the parameters by their names."""
        return {name: f"{str(it.dtype).removeprefix('torch.')} of shape {tuple(it.shape)}" for name, it in self._named}

    def _digest(self) -> str:
        described = sorted(self.described().items())  # ranks may have listed the parameters in another order
        return hashlib.blake2b(repr(described).encode(), digest_size=_DIGEST_BYTES).hexdigest()

    def _identify(self) -> Identity:
        if self._identity is None:
            digest = self._digest()
            with _lock:
                _restart_if_new_era()
                key = (self.process_set.process_set_id, digest)
                self._identity = Identity(digest, _used[key])
                _used[key] += 1
        return self._identity


def hooks_in_use() -> bool:
    """Return True if an optimizer of this process has a communication hook."""
    return bool(_hooked)


def _restart_if_new_era() -> None:
    global _era
    if _era != default_context.era:
        _era = default_context.era
        _used.clear()
