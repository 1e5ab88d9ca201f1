# SPDX-License-Identifier: Apache-2.0
"""SyncBatchNormalization: each rank's part of a batch is normalised as the whole batch is by one process."""

import numpy as np
import pytest
from harness.tensorflow_training import LIMIT, on_tensorflow_ranks

pytestmark = pytest.mark.timeout(LIMIT)


@on_tensorflow_ranks("shm2", "shm4")
def test_it_is_the_whole_batch():
    from harness.tensorflow_training import door, share

    tf, hvd = door()
    random = np.random.default_rng(2)
    for shape, options in (((8, 3), {}), ((8, 2, 2, 3), {"scale": False}), ((8, 3, 2), {"axis": 1, "center": False})):
        x, up = (random.normal(size=shape).astype(np.float32) * 3 + 1 for _ in range(2))
        plain = {} if hasattr(tf.keras, "ops") else {"fused": False}  # fused, Keras 2 counts one row less
        whole, part = tf.keras.layers.BatchNormalization(**plain, **options), hvd.SyncBatchNormalization(**options)
        results = []
        for layer, inputs, weight in (
            (whole, x, up),
            (part, *(share(each, hvd.rank(), hvd.size()) for each in (x, up))),
        ):
            inputs = tf.constant(inputs)
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = layer(inputs, training=True)
                loss = tf.reduce_sum(outputs * weight)
            results.append((outputs.numpy(), tape.gradient(loss, inputs).numpy()))
        (y, dx), (my_y, my_dx) = results
        np.testing.assert_allclose(my_y, share(y, hvd.rank(), hvd.size()), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(my_dx, share(dx, hvd.rank(), hvd.size()), rtol=1e-3, atol=1e-3)
        for name in ("moving_mean", "moving_variance"):
            mine, expected = (np.asarray(getattr(layer, name)) for layer in (part, whole))
            np.testing.assert_allclose(mine, expected, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(part(x, training=False), whole(x, training=False), rtol=1e-3, atol=1e-3)


@on_tensorflow_ranks("shm2")
def test_training_with_it_equals_one_worker():
    from harness.tensorflow_training import check_close, door, share

    tf, hvd = door()
    random = np.random.default_rng(3)
    x, y = random.normal(size=(8, 3)).astype(np.float32), random.normal(size=(8, 1)).astype(np.float32)

    def trained(norm, wrap, x, y):
        tf.keras.utils.set_random_seed(4)
        model = tf.keras.Sequential([tf.keras.layers.Dense(4), norm, tf.keras.layers.Dense(1)])
        model.build((None, 3))

        @tf.function
        def step():
            with wrap(tf.GradientTape()) as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            for weight, gradient in zip(
                model.trainable_variables, tape.gradient(loss, model.trainable_variables), strict=True
            ):
                weight.assign_sub(0.1 * gradient)

        for _ in range(3):
            step()
        return [np.asarray(weight) for weight in model.variables]

    mine = [share(each, hvd.rank(), hvd.size()) for each in (x, y)]
    together = trained(hvd.SyncBatchNormalization(), hvd.DistributedGradientTape, *mine)
    check_close(together, trained(tf.keras.layers.BatchNormalization(), lambda tape: tape, x, y), rtol=1e-3, atol=1e-4)


@on_tensorflow_ranks("shm2")
def test_options():
    from harness.tensorflow_training import door

    tf, hvd = door()
    for fused in (True, None):
        with pytest.raises(ValueError, match="fused"):
            hvd.SyncBatchNormalization(fused=fused)
    layer = hvd.SyncBatchNormalization(momentum=0.5, name="norm")
    copy = type(layer).from_config(layer.get_config())
    assert (copy.momentum, copy.name) == (0.5, "norm")
    half = hvd.SyncBatchNormalization(dtype="mixed_float16")
    assert half(tf.ones([4, 2]), training=True).dtype == tf.float16
    masked = hvd.SyncBatchNormalization(momentum=0.0)
    x = tf.constant([[[1.0], [100.0 * (hvd.rank() + 1)]], [[3.0], [7.0]]])
    masked(x, training=True, mask=tf.constant([[True, False], [True, False]]))
    np.testing.assert_allclose(masked.moving_mean, [2.0])
    np.testing.assert_allclose(masked.moving_variance, [1.0])
