# SPDX-License-Identifier: Apache-2.0
"""What TensorFlow adds to a call: the names under which ranks find each other's.

In a graph a collective is named as its node, name scopes included; eagerly as its operation, as in Horovod.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from horovod.common import calls, rules
from horovod.common.calls import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, JOIN, REDUCESCATTER

Tensor: TypeAlias = Any  # tf.Tensor

_TYPES = {
    ALLREDUCE: "Allreduce",
    ALLGATHER: "Allgather",
    BROADCAST: "Broadcast",
    ALLTOALL: "Alltoall",
    REDUCESCATTER: "Reducescatter",
    JOIN: "Join",
}


@dataclass(frozen=True, slots=True)
class Call(calls.Call):
    """A call whose splits, if any, are a tensor of their own: a graph may know them only when it runs."""

    ignore_name_scope: bool = False

    @property
    def type_name(self) -> str:
        """The type of the TensorFlow operation, such as HorovodGroupedAllreduce."""
        return f"Horovod{'Grouped' if self.grouped else ''}{_TYPES[self.kind]}"

    def node_name(self, tensors: Sequence[Tensor]) -> str:
        """What the node in a graph is called, but for name scopes."""
        if self.name:
            return rules.check_name(self.name)
        ends = [tensors[0], tensors[-1]] if self.grouped else tensors[:1]
        return "_".join([self.type_name, *(normalize_name(tensor.name) for tensor in ends)])

    def eager_name(self) -> str:
        """What ranks call it outside of graphs, where tensors have no names."""
        return rules.check_name(self.name or self.type_name)


def normalize_name(name: str) -> str:
    """A tensor's name as part of a node's: only letters, digits and underscores stay.

    What a function has captured is called by a number that counts all tensors of a process, which ranks need not share.
    """
    if re.fullmatch(r"\d+(:\d+)?", name):
        return "captured"
    return re.sub("[^A-Za-z0-9_]", "_", name)


def last_component(name: str) -> str:
    return name.rpartition("/")[2]


def static_shape(call: Call, tensor: Tensor) -> Any:
    """What a graph may know of a result's shape: the number of rows depends on the other ranks, or on our size."""
    if call.kind in (ALLGATHER, ALLTOALL, REDUCESCATTER):
        shape = tensor.shape
        return tf.TensorShape(None) if shape.rank in (None, 0) else tf.TensorShape([None]).concatenate(shape[1:])
    return tensor.shape
