# SPDX-License-Identifier: Apache-2.0
"""Continue from a checkpoint: rank 0 writes one after each epoch, and the next run continues from it.

horovodrun -np 2 python examples/keras/resume.py --epochs 3
horovodrun -np 2 python examples/keras/resume.py --epochs 6
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

try:
    import digits_keras
    import keras
    import numpy as np

    import horovod.keras as hvd
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[keras]'") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", default="example-output/keras-resume/digits.keras")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    hvd.init()
    (x, y), validation = digits_keras.parts()
    model, done = begin(options.checkpoint, x.shape[1], steps=len(x) // 32)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    if hvd.rank() == 0:
        Path(options.checkpoint).parent.mkdir(parents=True, exist_ok=True)
        print(f"begins with epoch {done + 1}")
        callbacks.append(keras.callbacks.ModelCheckpoint(options.checkpoint))
    model.fit(
        x[: len(x) // 32 * 32],
        y[: len(x) // 32 * 32],
        batch_size=32,
        initial_epoch=done,
        epochs=options.epochs,
        validation_data=validation,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )


def begin(checkpoint: str, features: int, steps: int) -> tuple[Any, int]:
    """Return the model and the number of completed epochs, from rank 0's checkpoint if rank 0 has one.

    Only rank 0's disk counts. The other ranks get the weights with the first batch.
    """
    exists = hvd.broadcast_object(Path(checkpoint).exists(), name="checkpoint exists")
    if exists and hvd.rank() == 0:
        model = hvd.load_model(checkpoint)
    else:
        model = digits_keras.network(features)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size()))
        model.compile(loss="sparse_categorical_crossentropy", optimizer=optimizer, metrics=["accuracy"])
    steps_done = int(np.asarray(model.optimizer.iterations))
    return model, hvd.broadcast_object(steps_done // steps, name="epochs done")


if __name__ == "__main__":
    main()
