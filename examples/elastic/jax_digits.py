# SPDX-License-Identifier: Apache-2.0
"""Elastic training with JAX: the jitted step, with its allreduce inside, keeps working when workers change.

horovodrun -np 4 --min-np 2 python examples/elastic/jax_digits.py
"""

from __future__ import annotations

from typing import Any

try:
    import jax
    import jax.numpy as jnp
    import optax
    from elastic_digits import Digits, Progress, arguments

    import horovod.jax as hvd
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[jax]'") from None


def main() -> None:
    options = arguments(__doc__)
    digits = Digits()
    progress = Progress(options)
    optimizer = optax.sgd(0.1, momentum=0.9)

    def loss_of(params: Any, images: Any, labels: Any) -> Any:
        logits = jax.nn.relu(images @ params["hidden"] + params["bias"]) @ params["output"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    @jax.jit
    def step(params: Any, moments: Any, images: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, images, labels)
        updates, moments = optimizer.update(hvd.allreduce(gradients, name="gradients"), moments)
        return optax.apply_updates(params, updates), moments, loss

    @hvd.elastic.run
    def train(state: hvd.elastic.JaxState) -> None:
        while state.epoch < options.epochs:
            loss = 0.0
            for images, labels in digits.batches(state.epoch, state.batch, hvd.rank(), hvd.size()):
                state.params, state.moments, loss = step(state.params, state.moments, images, labels)
                state.batch += 1
                state.step += 1
                progress.step(hvd.rank(), hvd.size(), state.step, float(loss))
                state.commit()
            state.epoch, state.batch = state.epoch + 1, 0
            progress.epoch(hvd.rank(), hvd.size(), state.epoch, float(loss))
        state.commit()

    first, second = jax.random.split(jax.random.key(1))
    params = {
        "hidden": 0.15 * jax.random.normal(first, (digits.pixels, 64)),
        "bias": jnp.zeros(64),
        "output": 0.15 * jax.random.normal(second, (64, 10)),
    }
    hvd.init()
    state = hvd.elastic.JaxState(params=params, moments=optimizer.init(params), epoch=0, batch=0, step=0)
    hvd.elastic.checkpoint(state, options.output / "jax", every=10)
    train(state)


if __name__ == "__main__":
    main()
