# SPDX-License-Identifier: Apache-2.0
"""Learn to read digits with Flax NNX on several ranks. Rank 0 writes a checkpoint with Orbax.

horovodrun -np 2 python digits_flax_nnx.py
"""

from __future__ import annotations

import sys
from pathlib import Path

try:
    import horovod.jax as hvd  # import before the first JAX computation

    import jax  # isort: skip
    import optax
    import orbax.checkpoint
    from digits_common import load, train
    from flax import nnx
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[jax]' flax orbax-checkpoint") from None


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(64, 64, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(self.dropout(nnx.relu(self.hidden(x))))


def main() -> int:
    hvd.init()
    # All ranks draw equal parameters; dropout uses a key that differs between ranks.
    key = jax.random.key(0)
    model = Network(nnx.Rngs(params=key, dropout=hvd.fold_in_rank(key)))
    nnx.update(model, hvd.broadcast_parameters(nnx.state(model, nnx.Param), root_rank=0))
    optimizer = nnx.Optimizer(model, hvd.DistributedOptimizer(optax.adam(3e-3)), wrt=nnx.Param)

    @nnx.jit
    def step(model: Network, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array) -> jax.Array:
        def loss(model: Network) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return hvd.allreduce(value)

    @nnx.jit
    def predict(model: Network, x: jax.Array) -> jax.Array:
        return model(x).argmax(-1)

    def predict_without_dropout(x: jax.Array) -> jax.Array:
        model.eval()
        result = predict(model, x)
        model.train()
        return result

    reached = train(load(), 15, lambda x, y: step(model, optimizer, x, y), predict_without_dropout)
    if hvd.rank() == 0:
        folder = Path("example-output/jax-flax").resolve()
        with orbax.checkpoint.StandardCheckpointer() as checkpointer:
            checkpointer.save(folder, nnx.to_pure_dict(nnx.state(model, nnx.Param)), force=True)
        print(f"accuracy {reached:.1%}; checkpoint in {folder}")
    hvd.barrier()
    return 0 if reached > 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
