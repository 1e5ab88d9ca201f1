# SPDX-License-Identifier: Apache-2.0
"""Learn to read handwritten digits with Keras on Ray, on the backend that KERAS_BACKEND names (default: torch).

python examples/ray/keras_digits.py
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import numpy as np
    import ray
    import ray.data
    import ray.train
    from ray.train import Checkpoint, RunConfig, ScalingConfig
    from sklearn.datasets import load_digits

    from horovod.ray import HorovodTrainer
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[ray,keras]' scikit-learn") from None

BATCH_SIZE = 32


def train(config: dict[str, Any]) -> None:
    """Train in one worker. Import Keras here, because it reads KERAS_BACKEND when it is imported."""
    import keras

    import horovod.keras as hvd

    class Report(keras.callbacks.Callback):  # type: ignore[misc]
        """Callback that reports figures from every rank and the model from rank 0 after each epoch."""

        def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            with tempfile.TemporaryDirectory() as folder:
                if hvd.rank() == 0:
                    self.model.save(Path(folder, "digits.keras"))
                checkpoint = Checkpoint.from_directory(folder) if hvd.rank() == 0 else None
                ray.train.report({"epoch": epoch + 1, **(logs or {})}, checkpoint=checkpoint)

    hvd.init()
    layers = [keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10, activation="softmax")]
    model = keras.Sequential([keras.Input((64,)), *layers])
    model.compile(
        loss="sparse_categorical_crossentropy",
        optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.002 * hvd.size())),
        metrics=["accuracy"],
    )
    model.fit(
        batches(ray.train.get_dataset_shard("train")),
        steps_per_epoch=config["rows"] // hvd.size() // BATCH_SIZE,
        epochs=config["epochs"],
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            Report(),
        ],
        verbose=2 if hvd.rank() == 0 else 0,
    )


def batches(shard: Any) -> Iterator[tuple[Any, Any]]:
    """Yield this rank's digits again and again."""
    while True:
        for batch in shard.iter_batches(batch_size=BATCH_SIZE, batch_format="numpy", drop_last=True):
            yield batch["image"], batch["label"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("example-output/ray-keras"))
    options = parser.parse_args()
    backend = os.environ.get("KERAS_BACKEND", "torch")
    ray.init(runtime_env={"env_vars": {"KERAS_BACKEND": backend}})
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    images, labels = bunch.data[order].astype("float32") / 16, bunch.target[order].tolist()
    rows = [{"image": image, "label": label} for image, label in zip(images, labels, strict=True)]
    trainer = HorovodTrainer(
        train,
        train_loop_config={"rows": len(rows), "epochs": options.epochs},
        scaling_config=ScalingConfig(num_workers=options.workers, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(storage_path=str(options.output.resolve())),
        datasets={"train": ray.data.from_items(rows)},
    )
    metrics = trainer.fit().metrics
    print(f"{backend}, {options.workers} workers, {metrics['epoch']} epochs: accuracy {metrics['accuracy']:.1%}")


if __name__ == "__main__":
    main()
