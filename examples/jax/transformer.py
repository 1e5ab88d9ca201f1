# SPDX-License-Identifier: Apache-2.0
"""Train a small transformer to write Python, on several ranks.

    horovodrun -np 2 python transformer.py

The text is Python's own standard library. Rank 0 shows progress and a sample of what the model writes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

try:
    import horovod.jax as hvd  # import before the first JAX computation

    import jax  # isort: skip
    import jax.numpy as jnp  # isort: skip
    import numpy as np
    import optax
    from rich.console import Console
    from rich.progress import track
    from transformer_model import Shape, initialise, logits, loss
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[jax]'") from None


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8, help="for each rank")
    return parser.parse_args()


def load_text() -> np.ndarray:
    folder = Path(argparse.__file__).parent
    text = "".join((folder / f"{name}.py").read_text() for name in ("argparse", "dataclasses", "inspect", "pathlib"))
    codes = np.frombuffer(text.encode("ascii", "ignore"), np.uint8)
    return np.clip(codes, 32 - 1, 126) - 31  # printable characters; 0 stands for all others


def sample(params: dict, shape: Shape, key: jax.Array, length: int) -> str:
    tokens = [1]
    predict = jax.jit(logits, static_argnums=2)
    for step_key in jax.random.split(key, length):
        window = np.zeros((1, shape.context), np.int32)
        recent = tokens[-shape.context :]
        window[0, : len(recent)] = recent
        tokens.append(int(jax.random.categorical(step_key, predict(params, window, shape)[0, len(recent) - 1])))
    return "".join("\n" if token == 0 else chr(token + 31) for token in tokens)


def main() -> int:
    options = parse_arguments()
    hvd.init()
    console = Console(quiet=hvd.rank() != 0)
    text, shape = load_text(), Shape()
    params = hvd.broadcast_parameters(
        jax.jit(initialise, static_argnums=1)(jax.random.key(hvd.rank()), shape), root_rank=0
    )
    optimizer = hvd.DistributedOptimizer(optax.adamw(1e-3))
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, tokens):
        value, gradients = jax.value_and_grad(loss)(params, tokens, shape)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, hvd.allreduce(value)

    # Each rank reads different parts of the text.
    random = np.random.default_rng([7, hvd.rank()])
    first = last = None
    for index in track(range(options.steps), "training", console=console, disable=not console.is_terminal):
        starts = random.integers(0, len(text) - shape.context - 1, options.batch_size)
        tokens = jnp.asarray(np.stack([text[start : start + shape.context + 1] for start in starts]), jnp.int32)
        params, state, value = step(params, state, tokens)
        first, last = first or float(value), float(value)
        if index % 20 == 0:
            console.print(f"step {index:>4}  loss {last:.3f}")
    console.print(f"loss {first:.2f} → {last:.2f}; it writes:")
    if hvd.rank() == 0:
        console.print(sample(params, shape, jax.random.key(1), 120), markup=False)
    hvd.barrier()
    return 0 if last < first else 1


if __name__ == "__main__":
    sys.exit(main())
