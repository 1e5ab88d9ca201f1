# SPDX-License-Identifier: Apache-2.0
"""Train with compressed gradients, and compare the loss with that of dense gradients.

    horovodrun -np 2 python compressed_gradients.py --method powersgd

With several hosts leave out --scope all: then only data that leaves a host is compressed.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

try:
    import horovod.jax as hvd  # import before the first JAX computation

    import jax  # isort: skip
    import jax.numpy as jnp  # isort: skip
    import numpy as np
    import optax
    from rich.console import Console
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[jax]'") from None

WIDTH = 128
METHODS = ("int8", "onebit", "topk", "powersgd", "dgc", "onebit-adam")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=METHODS, default="int8")
    parser.add_argument("--scope", choices=("host", "all"), default="all")
    parser.add_argument("--steps", type=int, default=100)
    return parser.parse_args()


def optimizer_of(method: str, scope: str) -> Any:
    """Return an optax transformation that reduces gradients as the method does."""
    compression = hvd.Compression
    if method == "onebit-adam":
        return hvd.OneBitAdam(1e-3, freeze_after=20, scope=scope, min_bytes=4096)
    chosen = {
        "dense": lambda: compression.none,
        "int8": lambda: compression.int8(scope=scope, min_bytes=4096),
        "onebit": lambda: compression.onebit(scope=scope, min_bytes=4096),
        "topk": lambda: compression.topk(0.05, scope=scope, min_bytes=4096),
        "powersgd": lambda: compression.powersgd(4, start_after=10, scope=scope, min_bytes=4096),
        "dgc": lambda: compression.dgc(0.05, momentum=0.9, ramp=(0.75,), ramp_steps=10, scope=scope, min_bytes=4096),
    }[method]()
    plain = optax.sgd(0.02) if method == "dgc" else optax.sgd(0.02, momentum=0.9)
    return hvd.DistributedOptimizer(plain, compression=chosen)


def predict(params: list[dict], x: jax.Array) -> jax.Array:
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def train(optimizer: Any, steps: int) -> tuple[float, float]:
    """Return the loss of the first and of the last step, averaged over ranks."""
    random = np.random.default_rng(0)  # equal on all ranks
    shapes = [(WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, 1)]
    params = [{"w": jnp.asarray(random.normal(size=it) / WIDTH**0.5), "b": jnp.zeros(it[1])} for it in shapes]
    target = jnp.asarray(random.normal(size=(WIDTH, 1)) / WIDTH**0.5)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, x):
        def loss(params):
            return jnp.square(predict(params, x) - jnp.sin(x @ target)).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, hvd.allreduce(value)

    mine = np.random.default_rng([1, hvd.rank()])  # different on each rank
    losses = []
    for _ in range(steps):
        x = jnp.asarray(mine.normal(size=(64, WIDTH)), jnp.float32)
        params, state, value = step(params, state, x)
        losses.append(float(value))
    return losses[0], losses[-1]


def main() -> int:
    options = parse_arguments()
    hvd.init()
    console = Console(quiet=hvd.rank() != 0)
    fine = True
    for method in ("dense", options.method):
        first, last = train(optimizer_of(method, options.scope), options.steps)
        console.print(f"{method:12} loss {first:.3f} → {last:.3f}")
        fine = fine and last < first
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
