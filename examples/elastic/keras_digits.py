# SPDX-License-Identifier: Apache-2.0
"""Elastic training with Keras' model.fit, on the backend that KERAS_BACKEND names: callbacks save the state.

horovodrun -np 4 --min-np 2 python examples/elastic/keras_digits.py
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

try:
    import keras
    import numpy as np
    from elastic_digits import GLOBAL_BATCH, Digits, Progress, arguments

    import horovod.keras as hvd
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[keras]'") from None


def main() -> None:
    options = arguments(__doc__)
    digits = Digits()
    progress = Progress(options)
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input((digits.pixels,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    hvd.init()
    model.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    state = hvd.elastic.KerasState(model, epoch=0, step=0)
    hvd.elastic.checkpoint(state, options.output / "keras", every=10)

    class Report(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_batch_end(self, batch: int, logs: Any = None) -> None:
            state.step += 1
            progress.step(hvd.rank(), hvd.size(), state.step, float(logs["loss"]))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            progress.epoch(hvd.rank(), hvd.size(), epoch + 1, float(logs["loss"]))

    @hvd.elastic.run
    def train(state: Any) -> None:
        """Train. An interrupted epoch starts again with the weights of the last commit."""
        batch_size = GLOBAL_BATCH // hvd.size()
        rows = np.arange(hvd.rank(), len(digits.labels) // GLOBAL_BATCH * GLOBAL_BATCH, hvd.size())
        callbacks = [
            Report(),
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
        ]
        model.fit(
            digits.images[rows],
            digits.labels[rows],
            batch_size=batch_size,
            initial_epoch=state.epoch,
            epochs=options.epochs,
            callbacks=callbacks,
            verbose=0,
        )

    train(state)


if __name__ == "__main__":
    main()
