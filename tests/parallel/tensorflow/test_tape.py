# SPDX-License-Identifier: Apache-2.0
"""The distributed tape: K workers get the weights of one worker on all of the data, with every option."""

import numpy as np
import pytest
from harness.tensorflow_training import LIMIT, on_tensorflow_ranks

pytestmark = pytest.mark.timeout(LIMIT)


@pytest.mark.checked_numbers("training with DistributedGradientTape", against="a single process")
@on_tensorflow_ranks("shm2", "shm4")
def test_k_workers_equal_one():
    from harness.tensorflow_training import check_close, data, door, modes, share, train

    tf, hvd = door()
    batches = list(zip(*data(), strict=True))
    mine = [tuple(share(part, hvd.rank(), hvd.size()) for part in batch) for batch in batches]
    alone = train(tf, lambda tape: tape, batches)
    assert not np.allclose(train(tf, lambda tape: tape, mine)[0], alone[0])  # without Horovod the result differs
    if hvd.size() > 2:  # two ranks are enough to test the options
        check_close(train(tf, hvd.DistributedGradientTape, mine, mode="function"), alone)
        return None
    for mode in modes():
        check_close(train(tf, hvd.DistributedGradientTape, mine, mode=mode), alone)
    predivided = train(tf, lambda tape: hvd.DistributedGradientTape(tape, gradient_predivide_factor=2.0), mine)
    check_close(predivided, alone)
    total = train(tf, lambda tape: hvd.DistributedGradientTape(tape, op=hvd.Sum), mine, rate=0.1 / hvd.size())
    check_close(total, alone)
    for groups in (1, 2, 7):
        check_close(train(tf, lambda tape, n=groups: hvd.DistributedGradientTape(tape, groups=n), mine), alone)
    halves = lambda tape: hvd.DistributedGradientTape(tape, compression=hvd.Compression.fp16)  # noqa: E731
    check_close(train(tf, halves, mine), alone, rtol=0, atol=1e-2)
    return [value.tobytes().hex() for value in train(tf, hvd.DistributedGradientTape, mine)]


@on_tensorflow_ranks("shm2")
def test_structures_nothing_and_names():
    from harness.tensorflow_training import door

    tf, hvd = door()
    me = hvd.rank()
    a, b = tf.Variable(2.0), tf.Variable([1.0, 3.0])

    class MyTape(tf.GradientTape):
        pass

    with MyTape(persistent=True) as inner:
        loss = a * float(me + 1)
    tape = hvd.DistributedGradientTape(inner)  # wrapped after the recording
    assert isinstance(tape, MyTape)
    assert type(tape).__name__ == "MyTape"
    found = tape.gradient(loss, {"a": a, "b": [b]})
    np.testing.assert_allclose(found["a"], 1.5)
    assert found["b"] == [None]
    np.testing.assert_allclose(tape.gradient(loss, a, use_generic_names=True), 1.5)
    np.testing.assert_allclose(tape.gradient(loss, a, output_gradients=tf.constant(2.0)), 3.0)
    zero = tape.gradient(loss, [b], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    np.testing.assert_allclose(zero, [[0.0, 0.0]])
    grouped = hvd.DistributedGradientTape(inner, groups=[[b, a]])
    np.testing.assert_allclose(grouped.gradient(loss, [a, b])[0], 1.5)
    for wrong in ({"groups": -1}, {"groups": [a]}, {"groups": [[a], [a]]}, {"groups": "all"}):
        with pytest.raises(ValueError, match="groups"):
            hvd.DistributedGradientTape(inner, **wrong)
    with pytest.raises(ValueError, match="only with op=Average"):
        hvd.DistributedGradientTape(inner, op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="tf.GradientTape"):
        hvd.DistributedGradientTape(None)


@pytest.mark.checked_numbers("sparse gradients", against="the exact values")
@on_tensorflow_ranks("shm2")
def test_sparse_gradients():
    from harness.tensorflow_training import door

    tf, hvd = door()
    table, scale = tf.Variable(tf.ones([4, 2])), tf.Variable(1.0)
    expected = np.zeros((4, 2))
    expected[: hvd.size()] = 1 / hvd.size()

    def gradients(**options):
        with hvd.DistributedGradientTape(tf.GradientTape(), **options) as tape:
            loss = tf.reduce_sum(tf.gather(table, [hvd.rank()])) * scale
        return tape.gradient(loss, [table, scale])

    for compiled in (False, True):
        run = tf.function(gradients) if compiled else gradients
        sparse, other = run()
        assert isinstance(sparse, tf.IndexedSlices)
        np.testing.assert_allclose(tf.convert_to_tensor(sparse), expected)
        np.testing.assert_allclose(other, 2.0)
        dense, _ = run(sparse_as_dense=True)
        assert not isinstance(dense, tf.IndexedSlices)
        np.testing.assert_allclose(dense, expected)
        predivided, other = run(gradient_predivide_factor=4.0)
        np.testing.assert_allclose(tf.convert_to_tensor(predivided), expected)
        np.testing.assert_allclose(other, 2.0)


@on_tensorflow_ranks("shm2")
def test_local_sources():
    from harness.tensorflow_training import door

    tf, hvd = door()
    me, size = hvd.rank(), hvd.size()
    shared, local = tf.Variable(1.0), tf.Variable(1.0)

    def tape_of(**options):
        with hvd.DistributedGradientTape(tf.GradientTape(), **options) as tape:
            loss = (shared + local) * float(me + 1)
        tape.register_local_source(local)
        return tape, loss

    mean = (size + 1) / 2
    for options, mine in (({}, (me + 1) / size), ({"scale_local_gradients": False}, me + 1)):
        tape, loss = tape_of(**options)
        np.testing.assert_allclose(tape.gradient(loss, [local, shared]), [mine, mean])
        tape, loss = tape_of(**options)
        [(one, its)], [(other, others)] = tape.get_local_and_global_gradients(loss, [shared, local])
        assert (one.ref(), other.ref()) == (local.ref(), shared.ref())
        np.testing.assert_allclose([its, others], [mine, mean])
    layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    layer.build((None, 2))
    with hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=layer) as tape:
        loss = tf.reduce_sum(layer(tf.ones([1, 2]))) * float(me + 1) * shared
    kernel, other = tape.gradient(loss, [layer.trainable_weights[0], shared])
    np.testing.assert_allclose(kernel, np.full((2, 1), (me + 1) / size))
    np.testing.assert_allclose(other, 2 * mean)
    with pytest.raises(ValueError, match="Keras layers"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[3])


@on_tensorflow_ranks("shm2")
def test_a_keras_model_in_a_loop_of_ones_own():
    from harness.tensorflow_training import check_close, door, share

    tf, hvd = door()
    x = np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)
    y = x.sum(1, keepdims=True)

    def trained(wrap, x, y):
        tf.keras.utils.set_random_seed(4)
        model = tf.keras.Sequential([tf.keras.layers.Dense(4, "tanh"), tf.keras.layers.Dense(1)])
        model.build((None, 3))
        optimizer = tf.keras.optimizers.SGD(0.1)

        @tf.function
        def step():
            with wrap(tf.GradientTape()) as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

        for _ in range(3):
            step()
        return [np.asarray(weight) for weight in model.trainable_variables]

    mine = (share(x, hvd.rank(), hvd.size()), share(y, hvd.rank(), hvd.size()))
    check_close(trained(hvd.DistributedGradientTape, *mine), trained(lambda tape: tape, x, y), rtol=1e-4, atol=1e-6)
