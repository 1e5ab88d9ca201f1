# SPDX-License-Identifier: Apache-2.0
"""Learn digits with checkpoints: rank 0 writes them, and only rank 0 reads them when training continues.

horovodrun -np 2 python examples/tensorflow2/resume.py --epochs 5
horovodrun -np 2 python examples/tensorflow2/resume.py --epochs 8
"""

from __future__ import annotations

import argparse

try:
    import tensorflow as tf
    from digits_data import batches, load, make_model, validate

    import horovod.tensorflow as hvd
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[tensorflow]' scikit-learn") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", default="example-output/tensorflow2-resume", metavar="DIR")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=None, help="of each epoch, if not all")
    parser.add_argument("--batch-size", type=int, default=32, help="for each rank")
    options = parser.parse_args()

    hvd.init()
    tf.keras.utils.set_random_seed(hvd.rank())
    images, labels, test_images, test_labels = load()
    model = make_model()
    optimizer = tf.keras.optimizers.Adam(0.002)
    optimizer.build(model.trainable_variables)
    epochs = tf.Variable(0, trainable=False)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epochs=epochs)
    manager = tf.train.CheckpointManager(checkpoint, options.checkpoints, max_to_keep=2)
    if hvd.rank() == 0 and manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint)
        print(f"goes on after epoch {int(epochs)}", flush=True)
    # The other ranks get everything from rank 0, so they need no access to the file.
    for variables in (model.variables, optimizer.variables, [epochs]):
        hvd.broadcast_variables(variables, root_rank=0)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    while int(epochs) < options.epochs:
        for batch in batches(images, labels, options.batch_size, int(epochs)).take(options.steps or -1):
            step(*batch)
        epochs.assign_add(1)
        loss, accuracy = validate(model, test_images, test_labels)
        if hvd.rank() == 0:
            manager.save()
            print(f"epoch {int(epochs)}/{options.epochs}  validation {loss:.3f}, accuracy {accuracy:.1%}", flush=True)


if __name__ == "__main__":
    main()
