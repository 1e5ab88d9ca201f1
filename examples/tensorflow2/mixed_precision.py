# SPDX-License-Identifier: Apache-2.0
"""Learn digits in mixed precision: Keras computes in 16-bit types, and gradients are sent as 16-bit numbers.

horovodrun -np 2 python examples/tensorflow2/mixed_precision.py --policy mixed_bfloat16
"""

from __future__ import annotations

import argparse

try:
    import tensorflow as tf
    from digits_data import batches, load, make_model, validate

    import horovod.tensorflow as hvd
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[tensorflow]' scikit-learn") from None

SCALE = 1024.0  # keeps small gradients above the smallest number of float16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", choices=("mixed_bfloat16", "mixed_float16"), default="mixed_bfloat16")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=None, help="of each epoch, if not all")
    parser.add_argument("--batch-size", type=int, default=32, help="for each rank")
    options = parser.parse_args()

    hvd.init()
    tf.keras.mixed_precision.set_global_policy(options.policy)
    half = options.policy == "mixed_float16"
    compression = hvd.Compression.fp16 if half else hvd.Compression.bf16
    scale = SCALE if half else 1.0
    tf.keras.utils.set_random_seed(0)
    images, labels, test_images, test_labels = load()
    model = make_model(dtype="float32")  # the type of the last layer, because a softmax needs the precision
    optimizer = tf.keras.optimizers.SGD(0.05 * hvd.size(), momentum=0.9)
    hvd.broadcast_variables(model.variables, root_rank=0)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with hvd.DistributedGradientTape(tf.GradientTape(), compression=compression) as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            scaled = loss * scale
        gradients = [gradient / scale for gradient in tape.gradient(scaled, model.trainable_variables)]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for epoch in range(1, options.epochs + 1):
        for batch in batches(images, labels, options.batch_size, epoch).take(options.steps or -1):
            step(*batch)
        loss, accuracy = validate(model, test_images, test_labels)
        if hvd.rank() == 0:
            print(f"epoch {epoch}/{options.epochs}  validation {loss:.3f}, accuracy {accuracy:.1%}", flush=True)


if __name__ == "__main__":
    main()
