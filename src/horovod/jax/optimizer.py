# SPDX-License-Identifier: Apache-2.0
"""Averaging of gradients over all ranks, as an optax transformation around an optimizer or around jax.grad."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from horovod.common.compression_methods import CompressionMethod
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.rules import Average
from horovod.jax.adapter import JaxArray, Tree
from horovod.jax.compressing.reducer import CompressionState, Reducer, is_method, reducer_of
from horovod.jax.compression import Compression, Compressor
from horovod.jax.mpi_ops import allreduce
from horovod.jax.rank_state import in_present_world


class DistributedState(NamedTuple):
    """State of a DistributedOptimizer that accumulates several gradients before it reduces them."""

    inner: Tree
    passes: JaxArray  # number of gradients accumulated since the last step
    sums: Tree


def DistributedOptimizer(  # noqa: N802 - the name in all doors
    optimizer: Any,
    compression: type[Compressor] | CompressionMethod = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return an optax transformation that reduces gradients over all ranks, then updates as `optimizer` does.

    Put it outside of optax wrappers that look at gradients.

    Args:
        optimizer: An optax GradientTransformation.
        compression: hvd.Compression.none, fp16 or bf16, a method with arguments such as hvd.Compression.int8(), or your
            own subclass of hvd.Compressor.
        backward_passes_per_step: Number of calls whose gradients are accumulated before they are reduced. The calls in
            between return zero updates.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        gradient_predivide_factor: Divide gradients by this factor before the reduction, and by the rest of the number
            of ranks afterwards. It needs op=hvd.Average.
        average_aggregated_gradients: Divide accumulated gradients by backward_passes_per_step.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        An optax GradientTransformation. Its state is a tree. It contains what compression has lost so far, if
        `compression` is a method with arguments.

    Raises:
        ValueError: Arguments are not valid or do not fit together.

    Example:
        >>> optimizer = hvd.DistributedOptimizer(optax.adam(0.001 * hvd.size()))
        >>> state = optimizer.init(jnp.zeros(2))
    """
    import optax

    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor works only with op=Average")
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step must be at least 1, not {backward_passes_per_step}")
    inner = optax.with_extra_args_support(optimizer)
    passes, divisor = backward_passes_per_step, backward_passes_per_step if average_aggregated_gradients else 1
    if is_method(compression):
        reducer = reducer_of(compression, op, gradient_predivide_factor, name, process_set)
        compressed = _compressed(reducer, inner)
        return compressed if passes == 1 else _every(passes, divisor, compressed)
    reduce = functools.partial(
        allreduce,
        op=op,
        name=name,
        compression=compression,
        prescale_factor=1.0 / gradient_predivide_factor,
        postscale_factor=gradient_predivide_factor,
        process_set=process_set,
    )

    def update(updates: Tree, state: Tree, params: Tree = None, **extra: Any) -> tuple[Tree, Tree]:
        _check_not_skipped_by(optax.apply_if_finite)
        changed: tuple[Tree, Tree] = inner.update(reduce(updates), state, params, **extra)
        return changed

    step = optax.GradientTransformationExtraArgs(inner.init, update)
    return step if passes == 1 else _every(passes, divisor, step)


class CompressedState(NamedTuple):
    """State of a DistributedOptimizer with a compression that has arguments."""

    inner: Tree
    compression: CompressionState


def _compressed(reducer: Reducer, inner: Any) -> Any:
    """Return the transformation that reduces compressed gradients, then updates as `inner` does."""
    import optax

    def init(params: Tree) -> CompressedState:
        return CompressedState(inner.init(params), reducer.first_state(params))

    def update(updates: Tree, state: CompressedState, params: Tree = None, **extra: Any) -> tuple[Tree, Tree]:
        _check_not_skipped_by(optax.apply_if_finite)
        reduced, kept = reducer.reduce(updates, reducer.in_present_world(updates, state.compression))
        changes, changed = inner.update(reduced, state.inner, params, **extra)
        return changes, CompressedState(changed, kept)

    return optax.GradientTransformationExtraArgs(init, update)


def _check_not_skipped_by(wrapper: Callable[..., Any]) -> None:
    """Raise ValueError if an optax wrapper that may skip this call because of this rank's gradients is calling it.

    The wrapper passes nothing by which it can be recognised, but the functions that it defines are on the stack.
    """
    codes = _codes_in(wrapper)
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code in codes:
            raise ValueError(
                f"hvd.DistributedOptimizer is inside optax.{wrapper.__name__}: a rank whose own gradients are not "
                "finite would skip the reduction, and the other ranks would wait for it or reduce their gradients "
                "with those of its next step. "
                f"Wrap in the other order: hvd.DistributedOptimizer(optax.{wrapper.__name__}(optimizer, ...))"
            )
        frame = frame.f_back  # type: ignore[assignment]


@functools.cache
def _codes_in(function: Callable[..., Any]) -> frozenset[CodeType]:
    """Return the code objects of all functions that a function defines."""
    return frozenset(one for one in inspect.unwrap(function).__code__.co_consts if isinstance(one, CodeType))


def _every(passes: int, divisor: int, step: Any) -> Any:
    """Return a transformation that accumulates gradients, and makes a step with every `passes`-th."""
    import optax

    def init(params: Tree) -> DistributedState:
        zeros = jax.tree_util.tree_map(jnp.zeros_like, params)
        return DistributedState(step.init(params), jnp.zeros((), jnp.int32), zeros)

    def update(updates: Tree, state: DistributedState, params: Tree = None, **extra: Any) -> tuple[Tree, Tree]:
        # Adapt the state now, because both branches of the condition below must return arrays of equal shapes.
        state = state._replace(inner=in_present_world(state.inner))
        sums = jax.tree_util.tree_map(jnp.add, state.sums, updates)
        zeros = jax.tree_util.tree_map(jnp.zeros_like, sums)

        def take(_: None) -> tuple[Tree, DistributedState]:
            gradients = jax.tree_util.tree_map(lambda total: total / divisor, sums) if divisor > 1 else sums
            changes, inner = step.update(gradients, state.inner, params, **extra)
            return changes, DistributedState(inner, jnp.zeros((), jnp.int32), zeros)

        def gather(_: None) -> tuple[Tree, DistributedState]:
            return zeros, DistributedState(state.inner, state.passes + 1, sums)

        result: tuple[Tree, Tree] = jax.lax.cond(state.passes + 1 >= passes, take, gather, None)
        return result

    return optax.GradientTransformationExtraArgs(init, update)


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    compression: type[Compressor] | CompressionMethod = Compression.none,
    op: int = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    **options: Any,
) -> Callable[..., Any]:
    """Return a function like jax.value_and_grad(fun), whose gradients are reduced over all ranks.

    The value is this rank's own.

    Args:
        fun: The function.
        argnums: As in jax.value_and_grad().
        has_aux: As in jax.value_and_grad().
        compression: hvd.Compression.none, fp16 or bf16 (the type in which floating-point values are sent),
            hvd.Compression.int8() (what leaves a host travels as 8-bit numbers; op must be Average or Sum), or your own
            subclass of hvd.Compressor.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.
        **options: Other arguments of jax.value_and_grad().

    Returns:
        A function with the arguments of `fun`, which returns the value and the reduced gradients.

    Example:
        >>> value, gradient = hvd.value_and_grad(lambda x: x * hvd.rank())(1.0)
        >>> float(gradient)  # on 2 ranks: 0.5
    """
    local = jax.value_and_grad(fun, argnums, has_aux, **options)

    @functools.wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> tuple[Any, Tree]:
        value, gradients = local(*args, **kwargs)
        reduced = allreduce(
            gradients,
            name=name,
            compression=compression,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            process_set=process_set,
        )
        return value, reduced

    return wrapped


def grad(
    fun: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False, **options: Any
) -> Callable[..., Any]:
    """Return a function like jax.grad(fun), whose gradients are reduced over all ranks.

    Args:
        fun: The function.
        argnums: As in jax.grad().
        has_aux: As in jax.grad().
        **options: Other arguments of hvd.value_and_grad() and of jax.grad().

    Returns:
        A function with the arguments of `fun`, which returns the reduced gradients.

    Example:
        >>> gradient = hvd.grad(lambda x: x * hvd.rank())(1.0)
        >>> float(gradient)  # on 2 ranks: 0.5
    """
    both = value_and_grad(fun, argnums, has_aux, **options)

    @functools.wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, gradients = both(*args, **kwargs)
        return (gradients, value[1]) if has_aux else gradients

    return wrapped
