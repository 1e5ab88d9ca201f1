# SPDX-License-Identifier: Apache-2.0
"""Messages from one rank to another: send and recv of the PyTorch API."""

from __future__ import annotations

from horovod.torch.adapter import Tensor
from horovod.torch.direct import add, collectives_for, finish
from horovod.torch.graph import leaves_graph


@leaves_graph
def send(tensor: Tensor, dst: int, tag: int = 0) -> None:
    """Send a tensor to one rank, which receives it with the same tag."""
    finish(collectives_for(tensor).send(tensor, dst, tag))


@leaves_graph
def send_async(tensor: Tensor, dst: int, tag: int = 0) -> int:
    """Start a send; the tensor must not change until it is done."""
    return add(collectives_for(tensor).send(tensor, dst, tag))


@leaves_graph
def recv(tensor: Tensor, src: int, tag: int = 0) -> Tensor:
    """Overwrite a tensor with what one rank sends, which must have the same size."""
    result: Tensor = finish(collectives_for(tensor).recv(tensor, src, tag))
    return result


@leaves_graph
def recv_async(tensor: Tensor, src: int, tag: int = 0) -> int:
    """Start a receive."""
    return add(collectives_for(tensor).recv(tensor, src, tag))
