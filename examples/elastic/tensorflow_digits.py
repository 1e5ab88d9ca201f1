# SPDX-License-Identifier: Apache-2.0
"""Elastic training with TensorFlow: the compiled step keeps working when workers change.

horovodrun -np 4 --min-np 2 python examples/elastic/tensorflow_digits.py
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

try:
    import tensorflow as tf
    from elastic_digits import Digits, Progress, arguments

    import horovod.tensorflow as hvd
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[tensorflow]'") from None


def main() -> None:
    options = arguments(__doc__)
    digits = Digits()
    progress = Progress(options)
    tf.random.set_seed(1)
    hidden = tf.Variable(tf.random.normal([digits.pixels, 64], stddev=0.15))
    output = tf.Variable(tf.random.normal([64, 10], stddev=0.15))
    biases = [tf.Variable(tf.zeros([64])), tf.Variable(tf.zeros([10]))]
    variables = [hidden, output, *biases]

    @tf.function(reduce_retracing=True)
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = tf.nn.relu(images @ hidden + biases[0]) @ output + biases[1]
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(0.5 * gradient)
        return loss

    @hvd.elastic.run
    def train(state: hvd.elastic.TensorFlowState) -> None:
        while state.epoch < options.epochs:
            loss = 0.0
            for images, labels in digits.batches(state.epoch, state.batch, hvd.rank(), hvd.size()):
                loss = float(step(images, labels))
                state.batch += 1
                state.step += 1
                progress.step(hvd.rank(), hvd.size(), state.step, loss)
                state.commit()
            state.epoch, state.batch = state.epoch + 1, 0
            progress.epoch(hvd.rank(), hvd.size(), state.epoch, loss)
        state.commit()

    hvd.init()
    state = hvd.elastic.TensorFlowState(variables, epoch=0, batch=0, step=0)
    hvd.elastic.checkpoint(state, options.output / "tensorflow", every=10)
    train(state)


if __name__ == "__main__":
    main()
