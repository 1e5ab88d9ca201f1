# SPDX-License-Identifier: Apache-2.0
"""Train with DiLoCo in JAX: jitted steps that communicate nothing, and a call between them that exchanges weights.

horovodrun -np 2 python diloco.py
horovodrun -np 2 python diloco.py --every 40 --wire int4
"""

from __future__ import annotations

import argparse
import sys

try:
    import horovod.jax as hvd  # import before the first JAX computation

    import jax  # isort: skip
    import jax.numpy as jnp  # isort: skip
    import numpy as np
    import optax
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[jax]'") from None

WIDTH = 64


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="steps of a round")
    parser.add_argument("--wire", choices=("fp32", "bf16", "int8", "int4"), default="fp32")
    return parser.parse_args()


def predict(params: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def main() -> int:
    options = parse_arguments()
    hvd.init()
    random = np.random.default_rng(0)  # equal on all ranks
    shapes = [(WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, 1)]
    params = [
        {"w": jnp.asarray(random.normal(size=it) / WIDTH**0.5, jnp.float32), "b": jnp.zeros(it[1])} for it in shapes
    ]
    direction = jnp.asarray(random.normal(size=(WIDTH, 1)) / WIDTH**0.5, jnp.float32)
    optimizer = optax.adamw(2e-3)
    state = optimizer.init(params)

    def loss(params, x):
        return jnp.square(predict(params, x) - jnp.sin(x @ direction)).mean()

    @jax.jit
    def step(params, state, x):
        updates, state = optimizer.update(jax.grad(loss)(params, x), state, params)
        return optax.apply_updates(params, updates), state

    diloco = hvd.DiLoCo(params, every=options.every, wire=options.wire)
    params = diloco.begin(params)
    mine = np.random.default_rng([1, hvd.rank()])  # different on each rank
    check = jnp.asarray(np.random.default_rng(2).normal(size=(512, WIDTH)), jnp.float32)
    first = float(loss(params, check))
    before = hvd.counters()
    for _ in range(options.steps):
        x = jnp.asarray(mine.normal(size=(64, WIDTH)), jnp.float32)
        params, state = step(params, state, x)
        params = diloco.step(params)
    params = diloco.finish(params)
    last, after = float(loss(params, check)), hvd.counters()
    moved = sum((after[name] or 0) - (before[name] or 0) for name in ("data_bytes_sent", "shared_memory_bytes_read"))
    if hvd.rank() == 0:
        print(f"loss {first:.4f} → {last:.4f} after {options.steps} steps, {moved / 1e6:.2f} MB moved for rank 0")
    return 0 if last < first else 1


if __name__ == "__main__":
    sys.exit(main())
