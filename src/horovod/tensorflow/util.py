# SPDX-License-Identifier: Apache-2.0
"""Helpers for variables of TensorFlow and of Keras 3: hashable keys, and the tf.Variable behind each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Set
from typing import Any

import tensorflow as tf


def _executing_eagerly() -> bool:
    """Return True if operations run immediately. Scripts import this function under Horovod's name."""
    return bool(tf.executing_eagerly())


def tf_variable(variable: Any) -> Any:
    """Return the tf.Variable itself; a variable of Keras 3 holds one."""
    return variable if isinstance(variable, tf.Variable) or not hasattr(variable, "value") else variable.value


def ref_of(variable: Any) -> Any:
    """Return a hashable key of a variable; variables cannot be keys, because `==` compares their elements."""
    return tf_variable(variable).ref()


def vars_to_refs(vars: Any) -> Any:
    """Return keys for variables, which compare element by element and so cannot be keys themselves.

    Args:
        vars: A variable, or nested lists of variables.

    Returns:
        A key, or nested tuples of keys.

    Example:
        >>> keys = {hvd.vars_to_refs(tf.Variable(1.0)): 'first'}
        >>> len(keys)  # on 2 ranks: 1
    """
    if isinstance(vars, (list, tuple)):
        return tuple(vars_to_refs(each) for each in vars)
    return ref_of(vars)


def refs_to_vars(refs: Any) -> Any:
    """Return the variables of keys that vars_to_refs() made.

    Args:
        refs: A key, or nested tuples of keys.

    Returns:
        A variable, or nested lists of variables.

    Example:
        >>> variable = tf.Variable(1.0)
        >>> hvd.refs_to_vars(hvd.vars_to_refs(variable)) is variable  # on 2 ranks: True
    """
    if isinstance(refs, (list, tuple)):
        return [refs_to_vars(each) for each in refs]
    return refs.deref()


def on_device(device: str) -> contextlib.AbstractContextManager[Any]:
    """Return tf.device(device), or a no-op if no device is given, because '' would undo the caller's choice."""
    return tf.device(device) if device else contextlib.nullcontext()


def flattened(variables: Any) -> list[Any]:
    """Return a list of variables from a list, a tree, or a method that returns one, as in older optimizers."""
    if callable(variables) and not isinstance(variables, tf.Variable):
        variables = variables()
    return list(tf.nest.flatten(list(variables) if isinstance(variables, (Iterator, Set)) else variables))
