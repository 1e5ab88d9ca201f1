# SPDX-License-Identifier: Apache-2.0
"""Training step of a small transformer in JAX, in one of three ways: its function, parameters and tokens."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from benchkit.examples import example

RATE = 1e-3
Step: TypeAlias = "tuple[Callable[..., Any], Any, Any]"


def _problem(options: argparse.Namespace) -> tuple[Any, Any, Callable[..., Any]]:
    """Return parameters, this rank's tokens, and the function that computes loss and gradients."""
    import jax
    import numpy as np

    transformer = example("jax", "transformer_model")
    shape = transformer.Shape(width=options.width, layers=options.layers)
    params = jax.jit(transformer.initialise, static_argnums=1)(jax.random.PRNGKey(0), shape)
    random = np.random.default_rng(options.rank)
    tokens = random.integers(0, shape.vocabulary, (options.batch, shape.context + 1), np.int32)
    return params, tokens, lambda params, tokens: jax.value_and_grad(transformer.loss)(params, tokens, shape)


def _descend(params: Any, gradients: Any) -> Any:
    import jax

    return jax.tree_util.tree_map(lambda p, g: p - RATE * g, params, gradients)


def alone(options: argparse.Namespace) -> Step:
    """Return a step that sends nothing, as the bound."""
    params, tokens, gradients_of = _problem(options)

    def step(params: Any, tokens: Any) -> Any:
        value, gradients = gradients_of(params, tokens)
        return _descend(params, gradients), value

    return step, params, tokens


def khorovod(options: argparse.Namespace) -> Step:
    import horovod.jax as hvd

    hvd.init()
    params, tokens, gradients_of = _problem(options)

    def step(params: Any, tokens: Any) -> Any:
        value, gradients = gradients_of(params, tokens)
        return _descend(params, hvd.allreduce(gradients)), value

    return step, params, tokens


def psum(options: argparse.Namespace) -> Step:
    """Return a step by JAX itself: one program over all processes, which uses Gloo on the CPU and NCCL on GPUs."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{options.port}", options.ranks, options.rank)
    try:
        from jax import shard_map
    except ImportError:
        from jax.experimental.shard_map import shard_map
    params, tokens, gradients_of = _problem(options)
    mesh = Mesh(jax.devices(), ("data",))
    whole, rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))

    def everywhere(tree: Any, sharding: Any) -> Any:
        import numpy as np

        return jax.tree_util.tree_map(
            lambda leaf: jax.make_array_from_process_local_data(sharding, np.asarray(leaf)), tree
        )

    def step(params: Any, tokens: Any) -> Any:
        value, gradients = gradients_of(params, tokens)
        return _descend(params, jax.lax.pmean(gradients, "data")), value

    mapped = shard_map(
        step,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec("data")),
        out_specs=(PartitionSpec(), PartitionSpec()),
        **_no_checks(shard_map),
    )
    return mapped, everywhere(params, whole), everywhere(tokens, rows)


def _no_checks(shard_map: Callable[..., Any]) -> dict[str, bool]:
    """Return the option that turns off shard_map's check of the outputs; its name depends on the version of JAX."""
    name = "check_vma" if "check_vma" in inspect.signature(shard_map).parameters else "check_rep"
    return {name: False}
