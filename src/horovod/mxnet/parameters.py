# SPDX-License-Identifier: Apache-2.0
"""Broadcast of parameters. Parameters without a known shape are broadcast once the first batch creates them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mxnet as mx

from horovod.mxnet.mpi_ops import broadcast_

_DeferredInitializationError = mx.gluon.parameter.DeferredInitializationError


def broadcast_parameters(params: Any, root_rank: int = 0, prefix: str | None = None) -> None:
    """Overwrite parameters with those of one rank.

    A parameter that has no shape yet is broadcast when the first batch gives it one.

    Args:
        params: What network.collect_params() returns, or a dict of NDArrays.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        prefix: Prefix of the names under which ranks match. It keeps several models apart.

    Raises:
        ValueError: `params` is not a dict, or a parameter is not initialized.
        HorovodMismatchError: The parameters of the ranks differ in shape or type.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> weights = {'w': mx.nd.zeros(2) + hvd.rank()}
        >>> hvd.broadcast_parameters(weights, root_rank=0)  # weights['w'] is now zero on all ranks
    """
    if not isinstance(params, Mapping) and not hasattr(params, "items"):
        raise ValueError(f"broadcast_parameters takes a dict or a ParameterDict, not {type(params).__name__}")
    under_way = []
    for key, value in sorted(params.items()):
        name = f"{prefix or ''}{key}"
        if not isinstance(value, mx.gluon.Parameter):
            under_way.append(broadcast_(value, root_rank, name))
        elif (arrays := _arrays_of(value, name)) is not None:
            under_way.append(_broadcast_arrays(arrays, root_rank, name))
        else:
            _broadcast_when_made(value, root_rank, name)
    for array in under_way:
        array.wait_to_read()


def _arrays_of(parameter: Any, name: str) -> Any:
    """Return the parameter's array in each context; None if its shape is not known yet."""
    try:
        return parameter.list_data()
    except _DeferredInitializationError:
        return None
    except RuntimeError as error:
        raise ValueError(f"broadcast_parameters: {name!r}: {error}") from error


def _broadcast_arrays(arrays: Any, root_rank: int, name: str) -> Any:
    first, *others = arrays
    broadcast_(first, root_rank, name)
    for other in others:
        first.copyto(other)
    return first


def _broadcast_when_made(parameter: Any, root_rank: int, name: str) -> None:
    make = parameter._init_impl

    def make_and_broadcast(*arguments: Any) -> None:
        parameter._init_impl = make
        make(*arguments)
        _broadcast_arrays(parameter.list_data(), root_rank, name)

    parameter._init_impl = make_and_broadcast
