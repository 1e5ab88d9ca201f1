# SPDX-License-Identifier: Apache-2.0
"""Learn to read digits with Equinox on several ranks. Rank 0 writes a checkpoint with Orbax.

horovodrun -np 2 python digits_equinox.py
"""

from __future__ import annotations

import sys
from pathlib import Path

try:
    import horovod.jax as hvd  # import before the first JAX computation

    import equinox as eqx  # isort: skip
    import jax  # isort: skip
    import optax
    import orbax.checkpoint
    from digits_common import load, train
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[jax]' equinox orbax-checkpoint") from None

FOLDER = Path("example-output/jax-equinox").resolve()


class Network(eqx.Module):
    layers: list[eqx.nn.Linear]
    dropout: eqx.nn.Dropout

    def __init__(self, key: jax.Array) -> None:
        first, second = jax.random.split(key)
        self.layers = [eqx.nn.Linear(64, 64, key=first), eqx.nn.Linear(64, 10, key=second)]
        self.dropout = eqx.nn.Dropout(0.1)

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        hidden = self.dropout(jax.nn.relu(self.layers[0](x)), key=key, inference=key is None)
        return self.layers[1](hidden)


class Trainer:
    """Training state. Equinox modules are immutable, so the current model is kept here."""

    def __init__(self, model: Network, key: jax.Array) -> None:
        self.model = model
        self.optimizer = hvd.DistributedOptimizer(optax.adam(3e-3))
        self.state = self.optimizer.init(eqx.filter(model, eqx.is_array))
        self.key = key

        @eqx.filter_jit
        def step(model: Network, state: optax.OptState, key: jax.Array, x: jax.Array, y: jax.Array) -> tuple:
            def loss(model: Network) -> jax.Array:
                scores = jax.vmap(model)(x, jax.random.split(key, len(x)))
                return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()

            value, gradients = eqx.filter_value_and_grad(loss)(model)
            updates, state = self.optimizer.update(gradients, state, eqx.filter(model, eqx.is_array))
            return eqx.apply_updates(model, updates), state, hvd.allreduce(value)

        self._step = step
        self._predict = eqx.filter_jit(lambda model, x: jax.vmap(model)(x).argmax(-1))

    def step(self, x: jax.Array, y: jax.Array) -> jax.Array:
        self.key, now = jax.random.split(self.key)
        self.model, self.state, value = self._step(self.model, self.state, now, x, y)
        return value

    def predict(self, x: jax.Array) -> jax.Array:
        return self._predict(self.model, x)


def main() -> int:
    hvd.init()
    key = jax.random.key(0)
    # All ranks start with the model of rank 0, whether it is new or read from a checkpoint.
    model = hvd.broadcast_parameters(Network(key), root_rank=0)
    trainer = Trainer(model, hvd.fold_in_rank(key))
    reached = train(load(), 15, trainer.step, trainer.predict)
    if hvd.rank() == 0:
        with orbax.checkpoint.StandardCheckpointer() as checkpointer:
            checkpointer.save(FOLDER, jax.tree_util.tree_leaves(eqx.filter(trainer.model, eqx.is_array)), force=True)
        print(f"accuracy {reached:.1%}; checkpoint in {FOLDER}")
    hvd.barrier()
    return 0 if reached > 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
