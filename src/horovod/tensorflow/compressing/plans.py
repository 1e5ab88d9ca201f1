# SPDX-License-Identifier: Apache-2.0
"""Plan of an exchange as tensors. Graphs that an elastic job traces compute the plan whenever they run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from horovod.common.context import default_context
from horovod.common.exchange_plan import Numbers, Plan, plan_of
from horovod.common.process_sets import ProcessSet, global_process_set

_SCALARS = {"size", "hosts", "largest", "here", "share", "chunk"}


def may_change() -> bool:
    """Return True if what is traced now may run in another world."""
    return not tf.executing_eagerly() and bool(default_context.settings.flag("HOROVOD_ELASTIC"))


def is_on_one_host(process_set: ProcessSet) -> bool:
    """Return True if all ranks of the set are on one host and will be whenever the traced function runs."""
    return not may_change() and len(set(_hosts(process_set))) == 1


def plan_for(process_set: ProcessSet, scope: str, count: int, message_bytes: Callable[[int], int]) -> Plan:
    """Return the plan of an exchange of `count` values as tensors."""

    def find() -> list[Numbers]:
        member = default_context.membership_of(process_set)
        hosts = _hosts(process_set) if scope == "host" else [str(rank) for rank in member.ranks]
        return list(plan_of(hosts, member.index, count, message_bytes))

    if not may_change():
        return Plan(*(tf.constant(numbers) for numbers in find()))
    found = tf.numpy_function(find, [], [np.int32] * len(Plan._fields))
    for name, numbers in zip(Plan._fields, found, strict=True):
        numbers.set_shape([] if name in _SCALARS else [None])
    return Plan(*found)


def _hosts(process_set: ProcessSet) -> list[str]:
    hosts = default_context.hosts
    if process_set is global_process_set:
        return list(hosts)
    return [hosts[rank] for rank in default_context.membership_of(process_set).ranks]
