# SPDX-License-Identifier: Apache-2.0
"""Messages from one rank to another: send and recv of the PyTorch API."""

from __future__ import annotations

from horovod.torch.adapter import Tensor
from horovod.torch.direct import add, collectives_for, finish
from horovod.torch.graph import leaves_graph


@leaves_graph
def send(tensor: Tensor, dst: int, tag: int = 0) -> None:
    """Send a tensor to one rank, which receives it with recv().

    Args:
        tensor: The values to send.
        dst: The rank that receives.
        tag: Number that the receiver passes too.

    Raises:
        ValueError: An argument is not valid.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = torch.zeros(2) + hvd.rank()
        >>> hvd.send(tensor, 1) if hvd.rank() == 0 else hvd.recv(tensor, 0).tolist()  # on rank 1 of 2: [0.0, 0.0]
    """
    finish(collectives_for(tensor).send(tensor, dst, tag))


@leaves_graph
def send_async(tensor: Tensor, dst: int, tag: int = 0) -> int:
    """Start to send a tensor to one rank.

    Do not change the tensor before the operation has completed.

    Args:
        tensor: The values to send.
        dst: The rank that receives.
        tag: Number that the receiver passes too.

    Returns:
        A handle for poll() and synchronize().

    Raises:
        ValueError: An argument is not valid.

    Example:
        >>> start = hvd.recv_async if hvd.rank() else hvd.send_async
        >>> hvd.synchronize(start(torch.zeros(2) + hvd.rank(), 1 - hvd.rank())).tolist()  # on 2 ranks: [0.0, 0.0]
    """
    return add(collectives_for(tensor).send(tensor, dst, tag))


@leaves_graph
def recv(tensor: Tensor, src: int, tag: int = 0) -> Tensor:
    """Overwrite a tensor with values that one rank sends with send().

    Args:
        tensor: The tensor to overwrite. It must have the size of the one that is sent.
        src: The rank that sends.
        tag: Number that the sender passes too.

    Returns:
        The tensor that was passed.

    Raises:
        ValueError: An argument is not valid.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = torch.zeros(2) + hvd.rank()
        >>> hvd.recv(tensor, 0).tolist() if hvd.rank() == 1 else hvd.send(tensor, 1)  # on rank 1 of 2: [0.0, 0.0]
    """
    result: Tensor = finish(collectives_for(tensor).recv(tensor, src, tag))
    return result


@leaves_graph
def recv_async(tensor: Tensor, src: int, tag: int = 0) -> int:
    """Start to overwrite a tensor with values that one rank sends.

    Do not use the tensor before the operation has completed.

    Args:
        tensor: The tensor to overwrite. It must have the size of the one that is sent.
        src: The rank that sends.
        tag: Number that the sender passes too.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns the tensor that was passed.

    Raises:
        ValueError: An argument is not valid.

    Example:
        >>> start = hvd.send_async if hvd.rank() else hvd.recv_async
        >>> hvd.synchronize(start(torch.zeros(2) + hvd.rank(), 1 - hvd.rank())).tolist()  # on 2 ranks: [1.0, 1.0]
    """
    return add(collectives_for(tensor).recv(tensor, src, tag))
