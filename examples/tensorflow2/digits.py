# SPDX-License-Identifier: Apache-2.0
"""Learn to read handwritten digits with a custom training loop and the distributed tape.

horovodrun -np 2 python examples/tensorflow2/digits.py
"""

from __future__ import annotations

import argparse
import time

try:
    import tensorflow as tf
    from digits_data import batches, load, make_model, validate

    import horovod.tensorflow as hvd
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[tensorflow]' scikit-learn") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=None, help="of each epoch, if not all")
    parser.add_argument("--batch-size", type=int, default=32, help="for each rank")
    parser.add_argument("--learning-rate", type=float, default=0.002, help="for one rank; more ranks take larger steps")
    options = parser.parse_args()

    hvd.init()
    tf.keras.utils.set_random_seed(hvd.rank())
    images, labels, test_images, test_labels = load()
    model = make_model()
    optimizer = tf.keras.optimizers.Adam(options.learning_rate * hvd.size() ** 0.5)
    optimizer.build(model.trainable_variables)
    # All variables exist now, so start all ranks with those of rank 0.
    hvd.broadcast_variables(model.variables, root_rank=0)
    hvd.broadcast_variables(optimizer.variables, root_rank=0)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for epoch in range(1, options.epochs + 1):
        start, count, total = time.perf_counter(), 0, 0.0
        for batch in batches(images, labels, options.batch_size, epoch).take(options.steps or -1):
            total += float(step(*batch))
            count += 1
        seconds = time.perf_counter() - start
        loss = float(hvd.allreduce(tf.constant(total / count)))
        test_loss, accuracy = validate(model, test_images, test_labels)
        if hvd.rank() == 0:
            speed = count * options.batch_size * hvd.size() / seconds
            print(
                f"epoch {epoch:2}/{options.epochs}  loss {loss:.3f}  validation {test_loss:.3f}, {accuracy:6.1%}"
                f"  {speed:,.0f} images/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
