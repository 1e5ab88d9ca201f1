# SPDX-License-Identifier: Apache-2.0
"""JAX primitive behind all collectives: the shapes of its results, and how it runs eagerly, in jit and under vmap.

One call carries a whole tree of arrays. Ranks match calls by name. Inside jit an unnamed call is named after its
program and its number there, so that ranks may trace programs different numbers of times.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from horovod.common import rules, waits
from horovod.common.calls import (
    ALLGATHER,
    ALLTOALL,
    KIND_NAMES,
    REDUCESCATTER,
    Call,
    reduction_of,
    result_shape,
    root_of,
)
from horovod.common.context import default_context
from horovod.common.context_numbers import number_of
from horovod.common.dtypes import ID_BY_DTYPE
from horovod.common.process_sets import Membership, ProcessSet
from horovod.jax import dispatch, handlers
from horovod.jax.adapter import JaxArray

waits.frameworks_submit()  # compiled programs submit operations from XLA's threads


def membership(process_set: ProcessSet) -> Membership:
    return default_context.membership_of(process_set)


def check(call: Call, dtype: Any, member: Membership) -> None:
    """Raise errors that can be found while tracing, as the eager functions raise them."""
    reduction_of(call, ID_BY_DTYPE[np.dtype(dtype)], member)
    root_of(call, member)


collective_p = Primitive("hvd_collective")
collective_p.multiple_results = True


def bind(call: Call, arrays: Sequence[JaxArray]) -> tuple[JaxArray, ...]:
    return tuple(collective_p.bind(*arrays, call=call)) if arrays else ()


def _abstract(*avals: Any, call: Call) -> list[Any]:
    member = membership(call.process_set)
    for aval in avals:
        check(call, aval.dtype, member)
    return [jax.core.ShapedArray(result_shape(call, aval.shape, member), aval.dtype) for aval in avals]


collective_p.def_abstract_eval(_abstract)


# Eager execution: a transformation without jit, such as grad, computes with concrete arrays.

_run_eagerly: Callable[[Call, Sequence[JaxArray]], Sequence[JaxArray]]


def define_eager(run: Callable[[Call, Sequence[JaxArray]], Sequence[JaxArray]]) -> None:
    """Set the function that runs collectives eagerly; its module imports this one, so it is passed in."""
    global _run_eagerly
    _run_eagerly = run


def _implementation(*arrays: JaxArray, call: Call) -> list[JaxArray]:
    return list(_run_eagerly(call, arrays))


collective_p.def_impl(_implementation)


# jit

_program_numbers = itertools.count(1)


class _Program:
    """One program that is being compiled: its number, and how many calls of each kind it contains so far."""

    def __init__(self) -> None:
        self.number = next(_program_numbers)
        self.calls: dict[str, int] = {}

    def name(self, stem: str) -> str:
        self.calls[stem] = self.calls.get(stem, 0) + 1
        return f"{stem}.{self.calls[stem]}"


_programs: dict[int, _Program] = {}  # by the id of their modules, which exist as long as they are being built


def _program_of(ctx: Any) -> _Program:
    # From JAX 0.11 on several programs share an MLIR context, and modules may compare as equal, so use the module's id.
    module = ctx.module_context.module
    if id(module) not in _programs:
        _programs[id(module)] = _Program()
        weakref.finalize(module, _programs.pop, id(module), None)
    return _programs[id(module)]


def _module_name(ctx: Any) -> str:
    return str(mlir.ir.StringAttr(ctx.module_context.module.operation.attributes["sym_name"]).value)


def _stem(ctx: Any, call: Call) -> str:
    """Return the common beginning of the names of calls of one kind in this program.

    Each process set counts its own calls, because a rank's program contains no calls on sets that exclude the rank.
    """
    stem = f"{KIND_NAMES[call.kind]}.{_module_name(ctx)}"
    set_id = membership(call.process_set).id
    return f"{stem}.set{set_id}" if set_id else stem


def _attributes(ctx: Any, call: Call) -> dict[str, Any]:
    program = _program_of(ctx)
    kind = KIND_NAMES[call.kind]
    more: dict[str, Any] = {"contents": call.contents} if call.contents else {}
    if call.splits is not None:
        more["splits"] = "".join(f"{rows} " for rows in call.splits)
    return more | {
        "kind": np.int64(call.kind),
        "op": np.int64(call.op),
        "root": np.int64(call.root),
        "only_root": np.int64(call.only_root),
        "prescale": np.float64(call.prescale),
        "postscale": np.float64(call.postscale),
        "context": np.int64(number_of(call.process_set)),
        "program": np.int64(program.number),
        "name": (rules.check_name(f"{kind}.{call.name}") if call.name else program.name(_stem(ctx, call)))
        + call.suffix,
    }


def _lower(ctx: Any, *operands: Any, call: Call) -> Any:
    loaded = handlers.load()
    if loaded is None:
        return _lower_through_python(ctx, *operands, call=call)
    dispatch.check()
    return loaded.lowering()(ctx, *operands, **_attributes(ctx, call))


def _lower_on_gpu(ctx: Any, *operands: Any, call: Call) -> Any:
    # There is no need for dispatch.check() here, because JAX starts programs on a GPU in the order of their calls.
    loaded = handlers.load()
    if loaded is None:
        raise NotImplementedError(
            f"hvd.{KIND_NAMES[call.kind]} on a GPU needs XLA's foreign function interface, but {handlers.unavailable()}"
        )
    return loaded.lowering()(ctx, *operands, **_attributes(ctx, call))


def _through_python(*arrays: JaxArray, call: Call) -> list[JaxArray]:
    member = membership(call.process_set)
    results = [jax.ShapeDtypeStruct(result_shape(call, one.shape, member), one.dtype) for one in arrays]

    def perform(*values: Any) -> list[Any]:
        return [np.asarray(result) for result in _run_eagerly(call, [np.asarray(value) for value in values])]

    return list(jax.pure_callback(perform, results, *arrays))


_lower_through_python = mlir.lower_fun(_through_python, multiple_results=True)


def _refuse_platform(ctx: Any, *operands: Any, call: Call) -> Any:
    raise NotImplementedError(
        f"hvd.{KIND_NAMES[call.kind]} inside jit works on the CPU and on NVIDIA's GPUs: set JAX_PLATFORMS=cpu, or jit "
        "the function with arrays that lie on jax.devices('cpu')[0]"
    )


mlir.register_lowering(collective_p, _refuse_platform)
mlir.register_lowering(collective_p, _lower, platform="cpu")
mlir.register_lowering(collective_p, _lower_on_gpu, platform="cuda")


# Under vmap, the collective runs on arrays with one more dimension. If it works on rows, the new dimension is the
# second.


def _batch(arrays: Sequence[JaxArray], dims: Sequence[Any], *, call: Call) -> tuple[list[JaxArray], list[Any]]:
    by_rows = call.kind in (ALLGATHER, ALLTOALL, REDUCESCATTER)
    moved, new_dims = [], []
    for array, dim in zip(arrays, dims, strict=True):
        if dim is not None and by_rows:
            array, dim = jax.numpy.moveaxis(array, dim, 1), 1
        moved.append(array)
        new_dims.append(dim)
    return collective_p.bind(*moved, call=call), new_dims


batching.primitive_batchers[collective_p] = _batch
