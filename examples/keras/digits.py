# SPDX-License-Identifier: Apache-2.0
"""Learn to read digits with Keras on several ranks, on the backend that KERAS_BACKEND names.

KERAS_BACKEND=torch horovodrun -np 2 python examples/keras/digits.py
"""

from __future__ import annotations

import argparse
import os

try:
    import digits_keras
    import keras

    import horovod.keras as hvd
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[keras]'") from None


def main() -> None:
    options = arguments()
    hvd.init()
    (x, y), validation = digits_keras.parts()
    model = digits_keras.network(x.shape[1])
    rate = 0.001 * hvd.size()  # a step uses more samples, so it can be longer
    model.compile(
        loss="sparse_categorical_crossentropy",
        optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(rate)),
        metrics=["accuracy"],
    )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=3, verbose=int(hvd.rank() == 0)),
    ]
    if hvd.rank() == 0 and options.checkpoint:
        callbacks.append(keras.callbacks.ModelCheckpoint(options.checkpoint, save_best_only=True))
    history = model.fit(
        x,
        y,
        batch_size=32,
        epochs=options.epochs,
        validation_data=validation,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    if hvd.rank() == 0:
        reached = history.history["val_accuracy"][-1]
        print(f"{keras.backend.backend()}, {hvd.size()} rank(s): validation accuracy {reached:.1%}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--checkpoint", default="", help="where rank 0 keeps the best model, such as best.keras")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
