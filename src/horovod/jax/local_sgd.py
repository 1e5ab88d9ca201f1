# SPDX-License-Identifier: Apache-2.0
"""hvd.LocalSGD and hvd.DiLoCo: objects that are called between jitted steps, with any tree of parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from horovod.common.local_sgd import AVERAGE, Core, Options, outer_of
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.jax.adapter import JaxArray, Tree, is_traced

Floats = npt.NDArray[np.float32]
_DTYPES = ("float32", "bfloat16", "float16")


class DiLoCo:
    """Object that lets each rank train alone and exchanges weights in rounds, with an outer Nesterov step.

    Call `params = diloco.begin(params)` before the first step, `params = diloco.step(params)` after each jitted step,
    and `params = diloco.finish(params)` at the end. Each rank keeps its own optimizer state. Save state_dict() beside
    the parameters. After an elastic reset call sync(params).

    Args:
        params: Tree of float32, bfloat16 or float16 parameters. Only their names and shapes are kept.
        outer: Rule by which the global weights follow the workers' average: a dict or an optimizer such as
            torch.optim.SGD with lr, momentum and nesterov. By default lr=0.7, momentum=0.9 and nesterov=True.
        every: Number of inner steps after which each fragment is exchanged. Give this or `every_seconds`.
        every_seconds: Number of seconds after which each fragment is exchanged. Workers are weighted by the steps that
            they made.
        fragments: Number of parts of the model that are exchanged one after the other.
        delay: Number of inner steps that a worker makes during an exchange, before it merges the result.
        merge: Share of the worker's own weights when it merges, at least 0 and below 1.
        wire: Format of values on the wire: 'fp32', 'bf16', 'int8' or 'int4'.
        process_set: The ranks that take part. By default all ranks of the job.
        deadline_s: Seconds after the first worker is ready at which an exchange begins without the late workers.

    Raises:
        ValueError: An argument is not valid, or a weight has a dtype that cannot be averaged.

    Example:
        >>> params = {'w': jnp.full(2, hvd.rank(), 'float32')}
        >>> diloco = hvd.DiLoCo(params, every=50)
        >>> params = diloco.begin(params)
        >>> params['w'].tolist()  # on 2 ranks: [0.0, 0.0]
    """

    def __init__(
        self,
        params: Tree,
        outer: Any = None,
        every: int | None = None,
        every_seconds: float | None = None,
        fragments: int = 1,
        delay: int = 0,
        merge: float = 0.0,
        wire: str = "fp32",
        process_set: ProcessSet = global_process_set,
        deadline_s: float = 30.0,
    ) -> None:
        rule = outer_of(outer)
        options = Options(
            every, every_seconds, fragments, delay, merge, wire, rule, process_set=process_set, deadline_s=deadline_s
        )
        self._tree = _Tree(params)
        self._core = Core(self._tree, options)

    def begin(self, params: Tree) -> Tree:
        """Return the parameters of the first rank.

        Call this before the first step, on all ranks.

        Args:
            params: Tree of the parameters of this rank.

        Returns:
            The parameters that all ranks begin with.
        """
        return self._run(self._core.begin, params)

    def step(self, params: Tree) -> Tree:
        """Return the parameters to continue with.

        Call this after each inner step.

        Args:
            params: Tree of the parameters of this rank.

        Returns:
            The parameters for the next inner step.
        """
        return self._run(self._core.step, params)

    def finish(self, params: Tree) -> Tree:
        """Return the global parameters.

        Call this at the end of the training, on all ranks.

        Args:
            params: Tree of the parameters of this rank.

        Returns:
            The parameters, which are equal on all ranks.
        """
        return self._run(self._core.finish, params)

    def sync(self, params: Tree) -> Tree:
        """Return the global parameters of the rank with the highest round.

        Call this after an elastic reset, on all ranks.

        Args:
            params: Tree of the parameters of this rank.

        Returns:
            The parameters, which are equal on all ranks.
        """
        return self._run(lambda: self._core.sync(keeps_inner=False), params)

    def state_dict(self) -> dict[str, Any]:
        """Return what training in rounds needs to continue.

        Save it beside the parameters.

        Returns:
            The counters, the global weights and the outer momentum.
        """
        return self._core.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Args:
            state: What state_dict() returned.
        """
        self._core.load_state_dict(state)

    def _run(self, action: Callable[[], None], params: Tree) -> Tree:
        with self._tree.holding(params) as held:
            action()
            return held.tree()


class LocalSGD(DiLoCo):
    """Object that lets each rank train alone and averages the weights in rounds.

    Call `params = averaging.begin(params)` before the first step, `params = averaging.step(params)` after each jitted
    step, and `params = averaging.finish(params)` at the end. Each rank keeps its own optimizer state. Save state_dict()
    beside the parameters. After an elastic reset call sync(params).

    Args:
        params: Tree of float32, bfloat16 or float16 parameters. Only their names and shapes are kept.
        every: Number of inner steps after which each fragment is exchanged. Give this or `every_seconds`.
        every_seconds: Number of seconds after which each fragment is exchanged. Workers are weighted by the steps that
            they made.
        fragments: Number of parts of the model that are exchanged one after the other.
        delay: Number of inner steps that a worker makes during an exchange, before it merges the result.
        merge: Share of the worker's own weights when it merges, at least 0 and below 1.
        wire: Format of values on the wire: 'fp32', 'bf16', 'int8' or 'int4'.
        process_set: The ranks that take part. By default all ranks of the job.
        deadline_s: Seconds after the first worker is ready at which an exchange begins without the late workers.

    Raises:
        ValueError: An argument is not valid, or a weight has a dtype that cannot be averaged.

    Example:
        >>> params = {'w': jnp.full(2, hvd.rank(), 'float32')}
        >>> averaging = hvd.LocalSGD(params, every=1)
        >>> params = averaging.begin(params)
        >>> params = averaging.finish(averaging.step({'w': params['w'] + 2.0 * hvd.rank()}))
        >>> params['w'].tolist()  # on 2 ranks: [1.0, 1.0]
    """

    def __init__(
        self,
        params: Tree,
        every: int | None = None,
        every_seconds: float | None = None,
        fragments: int = 1,
        delay: int = 0,
        merge: float = 0.0,
        wire: str = "fp32",
        process_set: ProcessSet = global_process_set,
        deadline_s: float = 30.0,
    ) -> None:
        super().__init__(params, AVERAGE, every, every_seconds, fragments, delay, merge, wire, process_set, deadline_s)


class _Tree:
    """Weights of a tree, as horovod.common.local_sgd reads and writes them. It holds arrays only during a call."""

    def __init__(self, params: Tree) -> None:
        paths, self._structure = jax.tree_util.tree_flatten_with_path(params)
        self._parameters = [(jax.tree_util.keystr(path), _checked(path, leaf)) for path, leaf in paths]
        if not self._parameters:
            raise ValueError("params has no arrays: pass the tree of parameters that the steps train")
        self._index = {name: index for index, (name, _) in enumerate(self._parameters)}
        self._params: Tree = None
        self._leaves: list[JaxArray] | None = None  # flat parameters once the core has asked for them
        self._written = False

    def names_and_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return all parameters in the tree's order."""
        return list(self._parameters)

    def read(self, names: Sequence[str]) -> list[Floats]:
        """Return copies of these parameters as float32 on the host."""
        return self.start_read(names)()

    def start_read(self, names: Sequence[str]) -> Callable[[], list[Floats]]:
        """Begin to copy parameters to the host, beside the steps that follow; they may donate the parameters."""
        copies = [jnp.array(self._flat()[self._index[name]], jnp.float32, copy=True) for name in names]
        for copy in copies:
            copy.copy_to_host_async()
        return lambda: [np.array(copy) for copy in copies]

    def write(self, values: Mapping[str, Floats]) -> None:
        """Replace these parameters by new arrays of their dtypes, on the devices of the old ones."""
        leaves = self._flat()
        for name, value in values.items():
            old = leaves[self._index[name]]
            # A copy of its own, because JAX may use a NumPy array's memory without copying it.
            new = np.array(value, old.dtype).reshape(np.shape(old))
            leaves[self._index[name]] = jax.device_put(new, old.sharding) if isinstance(old, jax.Array) else new
        self._written = True

    def holding(self, params: Tree) -> _Tree:
        """Use these parameters until the end of the `with` block; afterwards the caller may donate them."""
        self._params, self._leaves, self._written = params, None, False
        return self

    def tree(self) -> Tree:
        """Return the parameters with what was written; the very tree of the caller if nothing was."""
        return self._structure.unflatten(self._flat()) if self._written else self._params

    def __enter__(self) -> _Tree:
        return self

    def __exit__(self, *_: object) -> None:
        self._params = self._leaves = None

    def _flat(self) -> list[JaxArray]:
        if self._leaves is None:
            leaves, structure = jax.tree_util.tree_flatten(self._params)
            if structure != self._structure:
                raise ValueError(
                    f"The parameters have the structure {structure}, and those given first had {self._structure}: "
                    "make a new object for another model"
                )
            if is_traced(leaves):
                raise ValueError(
                    "The parameters are traced: call step() between jitted steps, not inside jit or another "
                    "transformation"
                )
            self._check_shapes(leaves)
            self._leaves = leaves
        return self._leaves

    def _check_shapes(self, leaves: Sequence[JaxArray]) -> None:
        for (name, shape), leaf in zip(self._parameters, leaves, strict=True):
            if np.shape(leaf) != shape:
                raise ValueError(f"params{name} has the shape {np.shape(leaf)}, and the first one had {shape}")


def _checked(path: Any, leaf: Any) -> tuple[int, ...]:
    """Return the shape of a leaf; raise ValueError if its dtype cannot be averaged."""
    name = str(getattr(leaf, "dtype", type(leaf).__name__))
    if name not in _DTYPES:
        raise ValueError(
            f"params{jax.tree_util.keystr(path)} has the dtype {name}, and rounds exchange only {', '.join(_DTYPES)}: "
            "keep it outside the tree of parameters"
        )
    return tuple(leaf.shape)
