# SPDX-License-Identifier: Apache-2.0
"""hvd.OneBitAdam: an Adam that exchanges momentum with one bit per value once its variance has settled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from horovod.common.compression_methods import OneBit
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.rules import Average, Max
from horovod.jax.adapter import JaxArray, Tree, is_traced
from horovod.jax.compressing.division import Division, are_finite
from horovod.jax.compressing.reducer import CompressionState, Reducer, reducer_of
from horovod.jax.mpi_ops import allreduce
from horovod.jax.optimizer import _check_not_skipped_by, _every

_SETTLED = 0.96  # ratio of the variance's norm to that of 1 / (1 - b2) steps ago at which the warm-up ends
_POINTS = 10  # number of norms taken during these steps
_map = jax.tree_util.tree_map


class OneBitAdamState(NamedTuple):
    """State of hvd.OneBitAdam. Only the compression errors of this rank (in `compression`) differ between ranks."""

    count: JaxArray  # number of steps made
    skipped: JaxArray  # number of steps left out because a gradient was not finite on some rank
    frozen_at: JaxArray  # step in which the variance was frozen, or 0
    norms: JaxArray  # norms of the variance, oldest first
    mean: Tree
    variance: Tree
    compression: CompressionState


@dataclass(frozen=True)
class _Adam:
    """Arguments of hvd.OneBitAdam."""

    learning_rate: float | Callable[[JaxArray], JaxArray]
    b1: float
    b2: float
    eps: float
    weight_decay: float
    lr_warmup_steps: int
    freeze_after: int | None
    reducer: Reducer

    def __post_init__(self) -> None:
        if not 0 <= self.b1 < 1 or not 0 <= self.b2 < 1:
            raise ValueError(
                f"OneBitAdam: b1 and b2 must be at least 0 and below 1, not b1={self.b1!r}, b2={self.b2!r}"
            )
        if not self.eps > 0 or not self.weight_decay >= 0:
            raise ValueError(
                "OneBitAdam: eps must be above 0 and weight_decay at least 0, not "
                f"eps={self.eps!r}, weight_decay={self.weight_decay!r}"
            )
        if self.lr_warmup_steps < 0 or (self.freeze_after is not None and self.freeze_after < 1):
            raise ValueError(
                "OneBitAdam: lr_warmup_steps must be at least 0 and freeze_after None or at least 1, not "
                f"{self.lr_warmup_steps!r} and {self.freeze_after!r}"
            )

    def init(self, params: Tree) -> OneBitAdamState:
        zeros = _map(jnp.zeros_like, params)
        none = jnp.zeros((), jnp.int32)
        norms = jnp.zeros(_POINTS + 1, jnp.float32)
        return OneBitAdamState(none, none, none, norms, zeros, zeros, self.reducer.first_state(params))

    def update(
        self, updates: Tree, state: OneBitAdamState, params: Tree = None, **extra: Any
    ) -> tuple[Tree, OneBitAdamState]:
        import optax

        _check_not_skipped_by(optax.apply_if_finite)
        if self.weight_decay and params is None:
            raise ValueError(
                "OneBitAdam with weight_decay needs the parameters: optimizer.update(grads, state, params)"
            )
        state = state._replace(compression=self.reducer.in_present_world(updates, state.compression))
        # Ranks with different processors may round the variance differently, and so see it settle in different steps.
        agreed = allreduce(state.frozen_at, op=Max, name=self._name("frozen"), process_set=self.reducer.process_set)
        state = state._replace(frozen_at=agreed)
        operands = updates, state
        if is_traced(jax.tree_util.tree_leaves(operands)):
            reduced, kept = jax.lax.cond(agreed > 0, self._reduce_momentum, self._reduce_gradients, operands)
        else:
            reduced, kept = (self._reduce_momentum if int(agreed) else self._reduce_gradients)(operands)
        changes, new = self._step(reduced, state._replace(compression=kept), params)
        is_finite = are_finite(jax.tree_util.tree_leaves(reduced))
        old = state._replace(skipped=state.skipped + 1)
        return (
            _map(lambda one: jnp.where(is_finite, one, jnp.zeros_like(one)), changes),
            _map(lambda one, other: jnp.where(is_finite, one, other), new, old),
        )

    def _name(self, stage: str) -> str | None:
        return f"{self.reducer.name}.{stage}" if self.reducer.name else None

    def _chosen(self, tree: Tree) -> Tree:
        """Return a tree that says for each leaf whether its momentum is compressed once the variance is frozen."""
        division = Division(tree, self.reducer.method)
        chosen = set(division.chosen)
        return division.whole([number in chosen for number in range(len(division.leaves))])

    def _reduce_gradients(self, operands: tuple[Tree, OneBitAdamState]) -> tuple[Tree, CompressionState]:
        updates, state = operands
        reduced = allreduce(updates, name=self._name("warm-up"), process_set=self.reducer.process_set)
        return reduced, state.compression

    def _reduce_momentum(self, operands: tuple[Tree, OneBitAdamState]) -> tuple[Tree, CompressionState]:
        """Return the ranks' average momentum for leaves that are compressed, and their average gradients for others."""
        updates, state = operands
        sent = _map(
            lambda chosen, old, one: self._mixed(old, one) if chosen else one,
            self._chosen(updates),
            state.mean,
            updates,
        )
        return self.reducer.reduce(sent, state.compression)

    def _mixed(self, old: JaxArray, new: JaxArray) -> JaxArray:
        return (self.b1 * old + (1 - self.b1) * new).astype(new.dtype)

    def _step(self, reduced: Tree, state: OneBitAdamState, params: Tree) -> tuple[Tree, OneBitAdamState]:
        """Return the changes of parameters and the next state."""
        is_frozen = state.frozen_at > 0
        count = state.count + 1
        chosen = self._chosen(reduced)
        mean = _map(
            lambda it, old, new: jnp.where(is_frozen, new, self._mixed(old, new)) if it else self._mixed(old, new),
            chosen,
            state.mean,
            reduced,
        )
        variance = _map(
            lambda it, old, new: jnp.where(is_frozen & it, old, self.b2 * old + (1 - self.b2) * new * new).astype(
                old.dtype
            ),
            chosen,
            state.variance,
            reduced,
        )
        rate = self.learning_rate(state.count) if callable(self.learning_rate) else self.learning_rate

        def change(it: bool, first: JaxArray, second: JaxArray) -> JaxArray:
            at = jnp.where(is_frozen, state.frozen_at, count) if it else count
            root = jnp.sqrt(second / (1 - self.b2 ** at.astype(jnp.float32)))
            step = -rate * first / (1 - self.b1 ** count.astype(jnp.float32)) / (root + self.eps)
            # The compressed momentum of a value that never had a gradient is not zero, so leave this value as it is.
            return jnp.where(second > 0, step, 0.0).astype(first.dtype)

        changes = _map(change, chosen, mean, variance)
        if self.weight_decay:
            changes = _map(lambda one, it: (one - rate * self.weight_decay * it).astype(one.dtype), changes, params)
        state = state._replace(count=count, mean=mean, variance=variance)
        return changes, self._watched(state)

    def _watched(self, state: OneBitAdamState) -> OneBitAdamState:
        """End the warm-up if the variance has settled, but never on one host, where nothing would be compressed."""
        if state.compression.kept.layout.is_dense:
            return state
        norms, count = state.norms, state.count
        if self.freeze_after is not None:
            ends = count >= self.freeze_after
        else:
            spacing = max(1, round(1 / (1 - self.b2) / _POINTS))
            total = sum(it.astype(jnp.float32).sum() for it in jax.tree_util.tree_leaves(state.variance))
            corrected = jnp.asarray(total / (1 - self.b2 ** count.astype(jnp.float32)), jnp.float32)
            is_point = count % spacing == 0
            norms = jnp.where(is_point, jnp.append(norms[1:], corrected), norms)
            ends = is_point & (norms[0] > 0) & (norms[-1] >= _SETTLED * norms[0])
        ends = ends & (state.frozen_at == 0) & (count >= max(1, self.lr_warmup_steps))
        return state._replace(norms=norms, frozen_at=jnp.where(ends, count, state.frozen_at))


def OneBitAdam(  # noqa: N802 - stands beside optax's optimizers under the name that all APIs use
    learning_rate: float | Callable[[JaxArray], JaxArray],
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    lr_warmup_steps: int = 0,
    freeze_after: int | None = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    **compression: Any,
) -> Any:
    """Return a distributed Adam that compresses to one bit what leaves a host, once its variance has settled.

    It is an optax GradientTransformation that begins as AdamW with dense gradients. When the variance has settled it is
    frozen, and ranks exchange the momentum as hvd.Compression.onebit() does. A step in which a gradient is not finite
    on some rank is left out on all ranks. Do not wrap it with hvd.DistributedOptimizer().

    Args:
        learning_rate: A number, or a schedule of the number of steps so far.
        b1: Decay of the momentum.
        b2: Decay of the variance.
        eps: Number that is added to the root of the variance.
        weight_decay: Decoupled weight decay.
        lr_warmup_steps: Do not freeze the variance in this many first steps, in which the learning rate still rises.
        freeze_after: Freeze the variance after this many steps. By default the variance decides. Its norm, compared
            with that of 1 / (1 - b2) steps before, has to be at least 0.96.
        backward_passes_per_step: Number of calls whose gradients are accumulated for a step.
        average_aggregated_gradients: Divide accumulated gradients by backward_passes_per_step.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.
        **compression: Arguments of hvd.Compression.onebit(), namely scope, exclude, min_bytes and error_feedback.

    Returns:
        An optax GradientTransformation.

    Raises:
        ValueError: An argument is not valid.

    Example:
        >>> optimizer = hvd.OneBitAdam(0.001)
        >>> state = optimizer.init(jnp.zeros(2))
    """
    import optax

    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step must be at least 1, not {backward_passes_per_step}")
    reducer = reducer_of(OneBit(**compression), Average, 1.0, name, process_set)
    adam = _Adam(learning_rate, b1, b2, eps, weight_decay, lr_warmup_steps, freeze_after, reducer)
    step = optax.GradientTransformationExtraArgs(adam.init, adam.update)
    passes = backward_passes_per_step
    return step if passes == 1 else _every(passes, passes if average_aggregated_gradients else 1, step)
