# SPDX-License-Identifier: Apache-2.0
"""Sharing of parameter groups, state and defaults between an optimizer and the distributed optimizer that wraps it.

Programs use both. A learning rate scheduler that was made before the optimizer was wrapped changes the groups of the
original, and the training loop steps the wrapper. When torch loads something into an optimizer it replaces lists and
dictionaries, so the loaded contents are put back into the objects that both optimizers share.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from horovod.torch.dynamo import outside_dynamo

# Methods of an optimizer that replace or extend the shared objects.
_METHODS = ("__setstate__", "load_state_dict", "add_param_group")
# Attributes that each optimizer has for itself: these methods, and a step() that schedulers replace to count calls.
NOT_SHARED = frozenset((*_METHODS, "step"))


def share(changed: Optimizer, kept: Optimizer) -> bool:
    """Make `changed`, into which something was loaded, use the objects of `kept` again, with the loaded contents.

    Return True if anything had to be changed.
    """
    if changed.param_groups is kept.param_groups and changed.state is kept.state:
        return False
    groups, loaded = kept.param_groups, changed.param_groups
    if loaded is not groups:
        for group, content in zip(groups, loaded, strict=False):
            _refill(group, content)
        groups[:] = [*groups[: len(loaded)], *loaded[len(groups) :]]
        changed.param_groups = groups
    for name in ("state", "defaults"):
        _refill(getattr(kept, name), getattr(changed, name))
        setattr(changed, name, getattr(kept, name))
    return True


def _refill(kept: Any, content: Any) -> None:
    if kept is not content:
        kept.clear()
        kept.update(content)


def follow(original: Optimizer, wrapper: Any, changed: Callable[[Any], None]) -> None:
    """Call `changed(wrapper)` after each call on the original that replaces or extends the shared objects."""
    for name in _METHODS:
        method = vars(original).get(name)
        if not isinstance(method, _Followed):
            method = _Followed(original, name)
            setattr(original, name, method)
        method.followers[wrapper] = changed


class _Followed:
    """Replacement of an optimizer's method, stored in the instance as schedulers do with step().

    It keeps neither the optimizer nor its wrappers alive. Copies and pickles of an optimizer do not contain it.
    """

    def __init__(self, optimizer: Optimizer, name: str) -> None:
        self.followers: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()
        self._optimizer = weakref.ref(optimizer)
        self._name = name
        self._before = vars(optimizer).get(name)  # a replacement that the program had made before

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        optimizer = self._optimizer()
        method = self._before or getattr(type(optimizer), self._name).__get__(optimizer)
        result = method(*args, **kwargs)
        for follower, changed in list(self.followers.items()):
            changed(follower)
        return result


@outside_dynamo  # older compilers cannot set an attribute of another optimizer
def count_step(original: Optimizer) -> None:
    """Record a step on the original, because a scheduler made for the original checks this before it warns."""
    attributes: Any = original
    attributes._opt_called = True
    if "_step_count" in vars(original):  # used by torch before 2.4
        attributes._step_count += 1
