# SPDX-License-Identifier: Apache-2.0
"""One rank of benchmarks/jax_step.py: builds a training step in one of three ways and runs it when told to.

Reads `run COUNT` lines from standard input; answers each with the seconds of every step, as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from benchkit.examples import example

RATE = 1e-3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=["alone", "khorovod", "gloo"])
    for number in ("rank", "ranks", "port", "width", "layers", "batch"):
        parser.add_argument(f"--{number}", type=int, required=True)
    options = parser.parse_args()
    step = WAYS[options.way](options)
    answer({"loss": [step() for _ in range(5)][-1]})
    for line in sys.stdin:
        times = []
        for _ in range(int(line.split()[1])):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        answer({"times": times})


# Gloo prints to standard output: answers get a descriptor of their own, and all else goes to the log.
_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def answer(message: dict[str, Any]) -> None:
    print(json.dumps(message), file=_answers, flush=True)


def problem(options: argparse.Namespace) -> tuple[Any, Any, Any, Callable[..., Any]]:
    """Model shape, parameters, this rank's tokens, and the function that gives loss and gradients."""
    import jax
    import numpy as np

    transformer = example("jax", "transformer_model")
    shape = transformer.Shape(width=options.width, layers=options.layers)
    params = jax.jit(transformer.initialise, static_argnums=1)(jax.random.PRNGKey(0), shape)
    random = np.random.default_rng(options.rank)
    tokens = random.integers(0, shape.vocabulary, (options.batch, shape.context + 1), np.int32)
    return shape, params, tokens, lambda params, tokens: jax.value_and_grad(transformer.loss)(params, tokens, shape)


def descend(params: Any, gradients: Any) -> Any:
    import jax

    return jax.tree_util.tree_map(lambda p, g: p - RATE * g, params, gradients)


def stepper(function: Callable[..., Any], params: Any, tokens: Any) -> Callable[[], float]:
    """Parameters go from step to step and are donated, as in training."""
    import jax

    compiled = jax.jit(function, donate_argnums=0)

    def step() -> float:
        nonlocal params
        params, value = compiled(params, tokens)
        jax.block_until_ready(params)
        return float(value.addressable_data(0))

    return step


def alone(options: argparse.Namespace) -> Callable[[], float]:
    """The bound: the same step with nothing sent."""
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    _, params, tokens, gradients_of = problem(options)

    def step(params: Any, tokens: Any) -> Any:
        value, gradients = gradients_of(params, tokens)
        return descend(params, gradients), value

    return stepper(step, params, tokens)


def khorovod(options: argparse.Namespace) -> Callable[[], float]:
    import horovod.jax as hvd

    hvd.init()
    _, params, tokens, gradients_of = problem(options)

    def step(params: Any, tokens: Any) -> Any:
        value, gradients = gradients_of(params, tokens)
        return descend(params, hvd.allreduce(gradients)), value

    return stepper(step, params, tokens)


def gloo(options: argparse.Namespace) -> Callable[[], float]:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{options.port}", options.ranks, options.rank)
    try:
        from jax import shard_map
    except ImportError:
        from jax.experimental.shard_map import shard_map
    _, params, tokens, gradients_of = problem(options)
    mesh = Mesh(jax.devices(), ("data",))
    whole, rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))

    def everywhere(tree: Any, sharding: Any) -> Any:
        import numpy as np

        return jax.tree_util.tree_map(
            lambda leaf: jax.make_array_from_process_local_data(sharding, np.asarray(leaf)), tree
        )

    def step(params: Any, tokens: Any) -> Any:
        value, gradients = gradients_of(params, tokens)
        return descend(params, jax.lax.pmean(gradients, "data")), value

    mapped = shard_map(
        step,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec("data")),
        out_specs=(PartitionSpec(), PartitionSpec()),
        **no_checks(shard_map),
    )
    return stepper(mapped, everywhere(params, whole), everywhere(tokens, rows))


def no_checks(shard_map: Callable[..., Any]) -> dict[str, bool]:
    """The outputs are equal on all ranks; older and newer JAX spell the promise differently."""
    import inspect

    name = "check_vma" if "check_vma" in inspect.signature(shard_map).parameters else "check_rep"
    return {name: False}


WAYS: dict[str, Callable[[argparse.Namespace], Callable[[], float]]] = {
    "alone": alone,
    "khorovod": khorovod,
    "gloo": gloo,
}

if __name__ == "__main__":
    main()
