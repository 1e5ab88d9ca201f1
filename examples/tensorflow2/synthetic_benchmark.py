# SPDX-License-Identifier: Apache-2.0
"""Images per second of a network from keras.applications on made-up data: each rank alone, then all together.

horovodrun -np 2 python examples/tensorflow2/synthetic_benchmark.py --model MobileNetV2 --image-size 64
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

try:
    import numpy as np
    import tensorflow as tf

    import horovod.tensorflow as hvd
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[tensorflow]' scikit-learn") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="ResNet50", help="a name in tf.keras.applications (default ResNet50)")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=32, help="for each rank")
    parser.add_argument("--warmup-batches", type=int, default=3)
    parser.add_argument("--batches-per-iteration", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    options = parser.parse_args()

    hvd.init()
    shape = (options.image_size, options.image_size, 3)
    model = getattr(tf.keras.applications, options.model)(weights=None, input_shape=shape, classes=1000)
    optimizer = tf.keras.optimizers.SGD(0.01)
    compression = hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none
    images = tf.random.uniform([options.batch_size, *shape])
    labels = tf.random.uniform([options.batch_size], maxval=999, dtype=tf.int64)
    hvd.broadcast_variables(model.variables, root_rank=0)
    optimizer.build(model.trainable_variables)

    def step_with(wrap: Callable[[tf.GradientTape], tf.GradientTape]) -> Callable[[], None]:
        @tf.function
        def step() -> None:
            with wrap(tf.GradientTape()) as tape:
                probabilities = model(images, training=True)
                loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(labels, probabilities))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        return step

    def speeds(step: Callable[[], None]) -> tuple[float, float]:
        """Return the mean images per second, and 1.96 standard deviations."""
        for _ in range(options.warmup_batches):
            step()
        found = []
        for _ in range(options.iterations):
            start = time.perf_counter()
            for _ in range(options.batches_per_iteration):
                step()
            found.append(options.batch_size * options.batches_per_iteration / (time.perf_counter() - start))
        return float(np.mean(found)), 1.96 * float(np.std(found))

    alone = speeds(step_with(lambda tape: tape))  # the ranks train separately, at the same time
    together = speeds(step_with(lambda tape: hvd.DistributedGradientTape(tape, compression=compression)))
    if hvd.rank() == 0:
        size = hvd.size()
        print(f"model: {options.model}, batch size {options.batch_size}")
        print(f"each rank alone: {alone[0]:.1f} +- {alone[1]:.1f} images/s")
        print(f"{size} ranks: {together[0]:.1f} +- {together[1]:.1f} images/s for each rank")
        print(f"total: {size * together[0]:.1f} +- {size * together[1]:.1f} images/s on {size} ranks")
        print(f"of the time alone: {together[0] / alone[0]:.1%}", flush=True)


if __name__ == "__main__":
    main()
