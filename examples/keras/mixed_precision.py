# SPDX-License-Identifier: Apache-2.0
"""Mixed precision with Keras 3: layers compute in float16, and the loss is scaled. All ranks skip a step or none do.

KERAS_BACKEND=jax horovodrun -np 2 python examples/keras/mixed_precision.py
"""

from __future__ import annotations

import argparse

try:
    import digits_keras
    import keras

    import horovod.keras as hvd
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[keras]'") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    hvd.init()
    keras.mixed_precision.set_global_policy("mixed_float16")
    (x, y), validation = digits_keras.parts()
    model = digits_keras.network(x.shape[1])
    # Gradients are sent as 16-bit numbers too. compile() puts a LossScaleOptimizer around the optimizer.
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.002), compression=hvd.Compression.bf16)
    model.compile(loss="sparse_categorical_crossentropy", optimizer=optimizer, metrics=["accuracy"])
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    history = model.fit(
        x, y, batch_size=32, epochs=options.epochs, validation_data=validation, callbacks=callbacks, verbose=0
    )
    if hvd.rank() == 0:
        print(f"validation accuracy {history.history['val_accuracy'][-1]:.1%}")
    keras.mixed_precision.set_global_policy("float32")


if __name__ == "__main__":
    main()
