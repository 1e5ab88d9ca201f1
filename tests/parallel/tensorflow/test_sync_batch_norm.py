# SPDX-License-Identifier: Apache-2.0
"""SyncBatchNormalization normalises each rank's part of a batch as one process normalises the whole batch."""

import json

import numpy as np
import pytest
from harness.keras_worlds import KERAS_2
from harness.tensorflow_training import LIMIT, on_tensorflow_ranks

from horovod.common.context import default_context

pytestmark = pytest.mark.timeout(LIMIT)
BOTH_KERAS = ("shm2", *(world for world in KERAS_2 if world.name != "shm2"))


@on_tensorflow_ranks("shm2", "shm4")
def test_it_is_the_whole_batch():
    from harness.tensorflow_training import door, share

    tf, hvd = door()
    random = np.random.default_rng(2)
    for shape, options in (((8, 3), {}), ((8, 2, 2, 3), {"scale": False}), ((8, 3, 2), {"axis": 1, "center": False})):
        x, up = (random.normal(size=shape).astype(np.float32) * 3 + 1 for _ in range(2))
        plain = {} if hasattr(tf.keras, "ops") else {"fused": False}  # with fused=True, Keras 2 counts one row less
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


def run_layer(tf, layer, x, up, mode, **call):
    """Return the outputs, and the gradients of sum(outputs * up) for the inputs and the layer's weights."""

    def run(x, up):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = layer(x, training=True, **call)
            loss = tf.reduce_sum(tf.cast(outputs, up.dtype) * up)
        return outputs, tape.gradient(loss, [x, *layer.trainable_variables])

    layer.build(x.shape)
    run = run if mode == "eager" else tf.function(run, jit_compile=mode == "jit")
    outputs, gradients = run(tf.constant(x), tf.constant(up))
    return np.asarray(outputs), [np.asarray(tf.cast(gradient, tf.float64)) for gradient in gradients]


def single_process(tf, **options):
    """Return Keras' own layer. fused=False, because the fused layer of Keras 2 counts one row less."""
    plain = {} if hasattr(tf.keras, "ops") else {"fused": False}
    return tf.keras.layers.BatchNormalization(**plain, **options)


def check_layer(tf, hvd, rows, shape, mode, mask=None, offset=1.0, tolerance=1e-4, **options):
    """Compare our layer on each rank's rows with Keras' layer on all rows: outputs, gradients, moving statistics."""
    random = np.random.default_rng(2)
    kind = np.float64 if options.get("dtype") == "float64" else np.float32
    x = (random.normal(size=(sum(rows), *shape)) * 3 + offset).astype(kind)
    up = random.normal(size=x.shape).astype(kind)
    mine = slice(sum(rows[: hvd.rank()]), sum(rows[: hvd.rank() + 1]))
    theirs, ours = ({} if mask is None else {"mask": tf.constant(mask[part])} for part in (slice(None), mine))
    whole, part = single_process(tf, **options), hvd.SyncBatchNormalization(**options)
    y, (dx, *dw) = run_layer(tf, whole, x, up, "eager", **theirs)
    my_y, (my_dx, *my_dw) = run_layer(tf, part, x[mine], up[mine], mode, **ours)
    close = {"rtol": tolerance, "atol": tolerance}
    np.testing.assert_allclose(my_y, y[mine], **close)
    np.testing.assert_allclose(my_dx, dx[mine], **close)
    # These are gradients of this rank's rows; an optimizer would sum them.
    for gradient, expected in zip(my_dw, dw, strict=True):
        total = hvd.allreduce(tf.constant(gradient), op=hvd.Sum)
        np.testing.assert_allclose(total, expected, rtol=tolerance, atol=10 * tolerance)
    for name in ("moving_mean", "moving_variance"):
        expected = np.asarray(getattr(whole, name))
        np.testing.assert_allclose(np.asarray(getattr(part, name)), expected, rtol=tolerance, atol=1e-6, err_msg=name)
    return np.asarray(part.moving_variance).tobytes().hex()


@pytest.mark.checked_numbers(
    "batch normalization of batches of different sizes: outputs, gradients, moving statistics",
    against="a single process",
)
@on_tensorflow_ranks(*BOTH_KERAS)
def test_every_sample_counts_the_same():
    from harness.tensorflow_training import door, modes

    tf, hvd = door()
    digests = [check_layer(tf, hvd, (3, 5), (2,), mode) for mode in modes()]
    digests += [check_layer(tf, hvd, (1, 4), (2, 3), "function", axis=1, center=False)]
    digests += [check_layer(tf, hvd, (7, 2), (3, 2, 2), "eager", dtype="float64", tolerance=1e-9)]
    digests += [check_layer(tf, hvd, (9, 40), (2,), "eager", offset=3000.0, tolerance=1e-2)]
    mask = np.arange(24).reshape(6, 4) % 5 != 0
    mask[:2, 1:] = False
    digests += [check_layer(tf, hvd, (2, 4), (4, 3), mode, mask=mask) for mode in ("eager", "function")]
    return digests


@pytest.mark.checked_numbers("the mean of 3 and 5 samples, by one allreduce", against="the exact value")
@on_tensorflow_ranks(*BOTH_KERAS)
def test_one_allreduce_carries_the_number_of_samples():
    from harness.tensorflow_training import door

    tf, hvd = door()

    def collectives():
        return json.loads(default_context.world.describe())["collectives"]

    values = tf.fill([3, 1], 0.075) if hvd.rank() == 0 else tf.fill([5, 1], -0.717)
    layer, counts = hvd.SyncBatchNormalization(momentum=0.0), [collectives()]
    with tf.GradientTape() as tape:
        tape.watch(values)
        loss = tf.reduce_sum(layer(values, training=True) ** 2)
    counts.append(collectives())
    tape.gradient(loss, values)
    counts.append(collectives())
    assert np.diff(counts).tolist() == [1, 1]  # one collective forward and one backward
    np.testing.assert_allclose(layer.moving_mean, [-0.42], rtol=1e-5)  # the mean of the ranks' means would be -0.321


@pytest.mark.checked_numbers(
    "batch normalization where one rank, or every rank, has an empty batch", against="a single process"
)
@on_tensorflow_ranks(*BOTH_KERAS)
def test_empty_batches():
    from harness.tensorflow_training import door, modes

    tf, hvd = door()
    for mode in modes():
        check_layer(tf, hvd, (0, 5), (2,), mode)
    check_layer(tf, hvd, (4, 0), (4, 3), "eager", mask=np.arange(16).reshape(4, 4) % 3 != 0)
    for call in ({}, {"mask": tf.zeros([3, 2], tf.bool)}):
        layer = hvd.SyncBatchNormalization(momentum=0.5)
        x = tf.ones([3 if call else 0, 2, 4])
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x, training=True, **call))
        assert not np.isnan(np.asarray(tape.gradient(loss, x))).any()
        np.testing.assert_array_equal(layer.moving_mean, np.zeros(4))
        np.testing.assert_array_equal(layer.moving_variance, np.ones(4))


@pytest.mark.checked_numbers("batch normalization while a rank has joined", against="a single process")
@on_tensorflow_ranks("shm2")
def test_a_rank_that_has_joined_counts_nothing():
    from harness.tensorflow_training import door

    tf, hvd = door()
    x = np.random.default_rng(5).normal(size=(4, 3)).astype(np.float32) + 2
    if hvd.rank() == 1:
        whole, part = single_process(tf, momentum=0.0), hvd.SyncBatchNormalization(momentum=0.0)
        y, gradients = run_layer(tf, whole, x, x * x, "eager")
        my_y, my_gradients = run_layer(tf, part, x, x * x, "eager")
        np.testing.assert_allclose(my_y, y, rtol=1e-4, atol=1e-5)
        for found, expected in zip(my_gradients, gradients, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
        for name in ("moving_mean", "moving_variance"):
            np.testing.assert_allclose(getattr(part, name), getattr(whole, name), rtol=1e-5)
    hvd.join()


@pytest.mark.checked_numbers("batch normalization within process sets", against="a single process")
@on_tensorflow_ranks("shm4")
def test_process_sets():
    from harness.sets import process_sets
    from harness.tensorflow_training import door

    tf, hvd = door()
    with process_sets([0, 2], [1, 3]) as sets:
        mine = sets[hvd.rank() % 2]
        x = np.arange(40, dtype=np.float32).reshape(20, 2) ** 2 / 100
        parts = {0: x[:3], 2: x[3:10], 1: x[10:11], 3: x[11:]}
        whole, part = single_process(tf), hvd.SyncBatchNormalization(process_set=mine)
        rows = np.concatenate([parts[rank] for rank in mine.ranks])
        expected = np.asarray(whole(rows, training=True))
        first = sum(len(parts[rank]) for rank in mine.ranks if rank < hvd.rank())
        found = np.asarray(part(parts[hvd.rank()], training=True))
        np.testing.assert_allclose(found, expected[first : first + len(found)], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(part.moving_variance, whole.moving_variance, rtol=1e-5)
    alone, own = hvd.SyncBatchNormalization(process_set=hvd.global_process_set), single_process(tf)
    np.testing.assert_allclose(alone(x, training=False), own(x, training=False), rtol=1e-5)


@pytest.mark.checked_numbers("two layers of equal names in two models", against="a single process")
@on_tensorflow_ranks("shm2")
def test_two_models_whose_layers_have_equal_names():
    from harness.tensorflow_training import door, modes

    tf, hvd = door()
    x = np.random.default_rng(6).normal(size=(8, 3)).astype(np.float32)
    mine = x[:3] if hvd.rank() == 0 else x[3:]

    def models(make):
        return [tf.keras.Sequential([tf.keras.layers.Input((3,)), make(name="norm")]) for _ in range(2)]

    for mode in modes():
        ours, theirs = models(hvd.SyncBatchNormalization), models(lambda name: single_process(tf, name=name))

        def step(x, both):
            return both[0](x, training=True), both[1](both[0](x, training=True) ** 2, training=True)

        run = step if mode == "eager" else tf.function(step, jit_compile=mode == "jit")
        expected = step(tf.constant(x), theirs)
        for found, whole in zip(run(tf.constant(mine), ours), expected, strict=True):
            np.testing.assert_allclose(found, whole[:3] if hvd.rank() == 0 else whole[3:], rtol=1e-3, atol=1e-4)
        for model, other in zip(ours, theirs, strict=True):
            for weight, expected_weight in zip(model.variables, other.variables, strict=True):
                np.testing.assert_allclose(weight, expected_weight, rtol=1e-4, atol=1e-6)


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
    half = hvd.SyncBatchNormalization(dtype="mixed_float16", momentum=0.0)
    rows = tf.range(10.0 * (hvd.rank() + 1))[:, tf.newaxis] * 100
    assert half(rows, training=True).dtype == tf.float16
    union = np.concatenate([np.arange(10), np.arange(20)]) * 100
    np.testing.assert_allclose(half.moving_mean, [union.mean()], rtol=1e-3)
    np.testing.assert_allclose(half.moving_variance, [union.var()], rtol=1e-3)  # larger than float16 can represent
    frozen = hvd.SyncBatchNormalization()
    frozen.trainable = False
    # A frozen layer uses the moving statistics, as in Keras.
    np.testing.assert_allclose(frozen(rows, training=True), rows, rtol=1e-2)
    masked = hvd.SyncBatchNormalization(momentum=0.0)
    x = tf.constant([[[1.0], [100.0 * (hvd.rank() + 1)]], [[3.0], [7.0]]])
    masked(x, training=True, mask=tf.constant([[True, False], [True, False]]))
    np.testing.assert_allclose(masked.moving_mean, [2.0])
    np.testing.assert_allclose(masked.moving_variance, [1.0])
