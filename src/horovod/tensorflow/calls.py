# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's part of a call: the names by which ranks match their collectives.

In a graph a collective has the name of its node, including name scopes; in eager mode that of its operation, as in
Horovod.
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
    """Call whose splits, if any, are passed as a separate tensor, because a graph may only know them when it runs."""

    ignore_name_scope: bool = False

    @property
    def type_name(self) -> str:
        """Return the type of the TensorFlow operation, such as HorovodGroupedAllreduce."""
        return f"Horovod{'Grouped' if self.grouped else ''}{_TYPES[self.kind]}"

    def node_name(self, tensors: Sequence[Tensor]) -> str:
        """Return the name of the node in a graph, without name scopes."""
        if self.name:
            return rules.check_name(self.name)
        ends = [tensors[0], tensors[-1]] if self.grouped else tensors[:1]
        return "_".join([self.type_name, *(normalize_name(tensor.name) for tensor in ends)])

    def eager_name(self) -> str:
        """Return the name in eager mode, where tensors have no names."""
        return rules.check_name(self.name or self.type_name)


def normalize_name(name: str) -> str:
    """Return a tensor's name as part of a node name, with only letters, digits and underscores.

    A tensor that a function has captured is named by a number that counts all tensors of the process, and that may
    differ between ranks; return "captured" for it.
    """
    if re.fullmatch(r"\d+(:\d+)?", name):
        return "captured"
    return re.sub("[^A-Za-z0-9_]", "_", name)


def last_component(name: str) -> str:
    return name.rpartition("/")[2]


def static_shape(call: Call, tensor: Tensor) -> Any:
    """Return what is known of a result's shape when a graph is built: the number of rows may depend on other ranks."""
    if call.kind in (ALLGATHER, ALLTOALL, REDUCESCATTER):
        shape = tensor.shape
        return tf.TensorShape(None) if shape.rank in (None, 0) else tf.TensorShape([None]).concatenate(shape[1:])
    return tensor.shape
