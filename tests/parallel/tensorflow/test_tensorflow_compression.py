# SPDX-License-Identifier: Apache-2.0
"""Compressed gradients in TensorFlow: simulated values, residuals, NaN, checkpoints, elastic commits, refused calls."""

import numpy as np
import pytest
from harness.tensorflow_compression import METHODS, SHAPE, STEPS, Taped, expected, gradient, method_of
from harness.tensorflow_training import LIMIT, on_tensorflow_ranks

pytestmark = pytest.mark.timeout(LIMIT)


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("kind", METHODS)
@on_tensorflow_ranks("shm2")
def test_values_are_those_of_one_process(kind, mode):
    from harness.tensorflow_training import door

    tf, hvd = door()
    digests = []
    for options in ({}, {"error_feedback": False}):
        taped = Taped(tf, hvd, method_of(hvd, kind, **options), mode)
        values = expected(hvd, kind, range(STEPS), feedback=not options)
        for step, value in enumerate(values):
            big, small = taped.step(gradient(hvd.rank(), step))
            np.testing.assert_allclose(big, value, rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(small, np.full(3, (hvd.size() + 1) / 2))
            digests.append(big.tobytes().hex()[:400])
    return digests


@pytest.mark.parametrize("kind", METHODS)
@on_tensorflow_ranks("shm4")
def test_only_what_leaves_a_host_is_compressed(kind):
    """Four ranks act as if on two hosts. int8 keeps residuals of a host's sum, PowerSGD those of each rank."""
    from unittest import mock

    from harness.tensorflow_training import door

    from horovod.common.context import default_context

    tf, hvd = door()
    hosts = ["a", "a", "b", "b"]
    with mock.patch.object(type(default_context), "hosts", hosts):
        _check_host_scope(tf, hvd, kind, hosts)


def _check_host_scope(tf, hvd, kind, hosts):
    taped = Taped(tf, hvd, method_of(hvd, kind, scope="host"), "function")
    for step, value in enumerate(expected(hvd, kind, range(2), hosts)):
        np.testing.assert_allclose(taped.step(gradient(hvd.rank(), step))[0], value, rtol=1e-3, atol=1e-4)
    here = [[0, 1], [2, 3]][hvd.rank() // 2]
    sets = [hvd.add_process_set(ranks) for ranks in ([0, 1], [2, 3])]
    mine = sets[hvd.rank() // 2]
    dense, _ = Taped(tf, hvd, method_of(hvd, kind, scope="host"), process_set=mine).step(gradient(hvd.rank(), 0))
    np.testing.assert_allclose(dense, np.mean([gradient(rank, 0) for rank in here], 0), rtol=1e-5, atol=1e-6)
    for one in sets:
        hvd.remove_process_set(one)


@pytest.mark.parametrize("kind", METHODS)
@on_tensorflow_ranks("shm2")
def test_what_elastic_jobs_trace_serves_other_hosts(kind):
    """One traced function works for ranks on one host, whose exchange is dense, and for ranks on two hosts."""
    from unittest import mock

    from harness.tensorflow_training import door

    from horovod.common.context import default_context
    from horovod.tensorflow.compressing import plans, reduction

    tf, hvd = door()
    taped = Taped(tf, hvd, method_of(hvd, kind, scope="host"), "function")

    def traced():
        return not tf.executing_eagerly()

    with mock.patch.object(plans, "may_change", traced), mock.patch.object(reduction, "may_change", traced):
        dense = np.mean([gradient(rank, 9) for rank in range(2)], 0)
        np.testing.assert_allclose(taped.step(gradient(hvd.rank(), 9))[0], dense, rtol=1e-5, atol=1e-5)
        with mock.patch.object(type(default_context), "hosts", ["a", "b"]):
            for step, value in enumerate(expected(hvd, kind, range(2))):
                np.testing.assert_allclose(taped.step(gradient(hvd.rank(), step))[0], value, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(taped.step(gradient(hvd.rank(), 9))[0], dense, rtol=1e-5, atol=1e-5)


@on_tensorflow_ranks("shm2")
def test_sums_dense_steps_and_what_stays_dense():
    from harness.tensorflow_training import door

    tf, hvd = door()
    mean = [np.mean([gradient(rank, step) for rank in range(2)], 0) for step in range(3)]
    for mode in ("eager", "function"):
        taped = Taped(tf, hvd, hvd.Compression.powersgd(rank=3, start_after=2, scope="all"), mode, op=hvd.Sum)
        for step in range(2):
            np.testing.assert_allclose(taped.step(gradient(hvd.rank(), step))[0], 2 * mean[step], rtol=1e-5, atol=1e-5)
        [value] = expected(hvd, "powersgd", [2])
        np.testing.assert_allclose(taped.step(gradient(hvd.rank(), 2))[0], 2 * value, rtol=1e-3, atol=1e-3)
    left_out = {"exclude": ["big"]}, {"min_bytes": 2**20}, {"scope": "host"}
    for options in left_out:
        taped = Taped(tf, hvd, method_of(hvd, "int8", **options))
        np.testing.assert_allclose(taped.step(gradient(hvd.rank(), 0))[0], mean[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", METHODS)
@on_tensorflow_ranks("shm2")
def test_a_bad_value_on_one_rank_spoils_the_step_everywhere_and_no_residual(kind):
    from harness.tensorflow_training import door

    tf, hvd = door()
    good = expected(hvd, kind, range(3))
    for mode, bad in (("eager", np.nan), ("function", np.inf)):
        taped = Taped(tf, hvd, method_of(hvd, kind), mode)
        for step in range(3):
            if step == 2:
                spoilt = gradient(hvd.rank(), 7)
                if hvd.rank() == 1:
                    spoilt[50, 60] = bad
                assert not np.isfinite(taped.step(spoilt)[0]).all()
            np.testing.assert_allclose(taped.step(gradient(hvd.rank(), step))[0], good[step], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", METHODS)
@on_tensorflow_ranks("shm2")
def test_optimizers_save_what_they_keep(kind):
    """A second optimizer continues from a checkpoint, or after a rollback, with the bits of the first."""
    import os
    import tempfile

    from harness.tensorflow_training import door

    tf, hvd = door()

    def made():
        variable = tf.Variable(tf.zeros(SHAPE))
        optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), compression=method_of(hvd, kind))
        return variable, optimizer

    def trained(variable, optimizer, steps):
        for step in steps:
            optimizer.apply_gradients([(tf.constant(gradient(hvd.rank(), step)), variable)])
        return variable.numpy()

    variable, optimizer = made()
    trained(variable, optimizer, range(2))
    with tempfile.TemporaryDirectory() as folder:
        path = tf.train.Checkpoint(variable=variable, optimizer=optimizer).save(os.path.join(folder, "model"))
        other = made()
        tf.train.Checkpoint(variable=other[0], optimizer=other[1]).restore(path)
        goes_on = trained(*other, range(2, 4))
    whole = trained(variable, optimizer, range(2, 4))
    np.testing.assert_array_equal(goes_on, whole)
    np.testing.assert_allclose(whole, -np.sum(expected(hvd, kind, range(4)), 0), rtol=1e-3, atol=1e-3)
    return whole.tobytes().hex()[:400]


@on_tensorflow_ranks("shm2")
def test_elastic_states_roll_residuals_back():
    from harness.tensorflow_training import door

    tf, hvd = door()
    taped = Taped(tf, hvd, method_of(hvd, "int8"))
    state = hvd.elastic.TensorFlowState(taped.variables)
    taped.step(gradient(hvd.rank(), 0))
    state.save()
    second, _ = taped.step(gradient(hvd.rank(), 1))
    third, _ = taped.step(gradient(hvd.rank(), 2))
    state.restore()
    np.testing.assert_array_equal(taped.step(gradient(hvd.rank(), 1))[0], second)
    np.testing.assert_array_equal(taped.step(gradient(hvd.rank(), 2))[0], third)


@on_tensorflow_ranks("shm2")
def test_sessions():
    from harness.tensorflow_training import door

    tf, hvd = door()
    with tf.Graph().as_default():
        variable = tf.Variable(tf.zeros(SHAPE))
        value = tf.compat.v1.placeholder(tf.float32, SHAPE)
        inner = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        optimizer = hvd.DistributedOptimizer(inner, compression=method_of(hvd, "int8"))
        train = optimizer.minimize(tf.reduce_sum(variable * value), var_list=[variable])
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hvd.BroadcastGlobalVariablesHook(0)]) as session:
            for step in range(3):
                session.run(train, {value: gradient(hvd.rank(), step)})
            found = session.run(variable)
    np.testing.assert_allclose(found, -np.sum(expected(hvd, "int8", range(3)), 0), rtol=1e-3, atol=1e-3)


@on_tensorflow_ranks("shm2")
def test_allreduce_without_feedback():
    from harness.tensorflow_training import door

    tf, hvd = door()
    method = hvd.Compression.int8(scope="all")
    value = tf.constant(gradient(hvd.rank(), 0))
    [mean] = expected(hvd, "int8", [0], feedback=False)
    for run in (hvd.allreduce, tf.function(hvd.allreduce)):
        np.testing.assert_allclose(run(value, compression=method), mean, rtol=1e-3, atol=1e-4)
    total, small = hvd.grouped_allreduce([value, tf.ones([2])], compression=method, op=hvd.Sum, postscale_factor=0.5)
    np.testing.assert_allclose(total, mean, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(small, [1.0, 1.0])
    with tf.GradientTape() as tape:
        tape.watch(value)
        loss = tf.reduce_sum(hvd.allreduce(value, compression=method, op=hvd.Sum))
    np.testing.assert_allclose(tape.gradient(loss, value), np.full(SHAPE, 2.0))


@on_tensorflow_ranks("shm2")
def test_what_is_refused():
    from harness.tensorflow_training import door

    tf, hvd = door()
    keras, old = tf.keras.optimizers.SGD(1.0), tf.compat.v1.train.GradientDescentOptimizer(1.0)
    for method in (hvd.Compression.onebit(), hvd.Compression.topk(0.1), hvd.Compression.dgc(0.1, 0.9)):
        refusal = (
            rf"does not support compression={method.name}\(.*Use hvd.Compression.int8\(\), powersgd\(\), fp16 or none"
        )
        for make in (
            lambda it: hvd.DistributedOptimizer(keras, compression=it),
            lambda it: hvd.DistributedOptimizer(old, compression=it),
            lambda it: hvd.DistributedGradientTape(tf.GradientTape(), compression=it),
        ):
            with pytest.raises(ValueError, match=refusal):
                make(method)
    int8, power = method_of(hvd, "int8"), method_of(hvd, "powersgd")
    for call, options, named in (
        (hvd.allreduce, {"compression": power}, r"allreduce does not support compression=powersgd\("),
        (hvd.allreduce, {"compression": int8, "op": hvd.Adasum}, r"int8\(.* not .*Adasum"),
        (hvd.reducescatter, {"compression": int8}, r"reducescatter does not support compression=int8\("),
    ):
        with pytest.raises(ValueError, match=named):
            call(tf.zeros([4]), **options)
    with pytest.raises(ValueError, match=r"op=hvd.Adasum does not support compression=int8\("):
        hvd.DistributedOptimizer(old, op=hvd.Adasum, compression=int8)
    with pytest.raises(TypeError, match="pass an instance"):
        hvd.DistributedOptimizer(keras, compression=hvd.Compression.int8)

    table = tf.Variable(tf.ones(SHAPE), name="table")

    def reduced(loss_of, tape_of=tf.GradientTape, **options):
        with hvd.DistributedGradientTape(tape_of(), **{"compression": int8, **options}) as tape:
            loss = loss_of()
        return tape.gradient(loss, [table])

    lookup = lambda: tf.reduce_sum(tf.gather(table, [hvd.rank()]))  # noqa: E731
    square = lambda: tf.reduce_sum(table**2)  # noqa: E731
    with pytest.raises(ValueError, match=r"int8\(.*sparse gradients \(tf.IndexedSlices\).*those of table"):
        reduced(lookup)
    [gathered] = reduced(lookup, compression=method_of(hvd, "int8", exclude=["tab*"]))
    assert isinstance(gathered, tf.IndexedSlices)
    with pytest.raises(ValueError, match="exclude='bias' matches no name of a variable"):
        reduced(square, compression=method_of(hvd, "int8", exclude=["bias"]))
    with pytest.raises(ValueError, match="one function reduces two gradients of table"):
        tf.function(lambda: [reduced(square), reduced(square)])()
    with pytest.raises(NotImplementedError, match="pass jit_compile=False"):
        tf.function(lambda: reduced(square), jit_compile=True)()
    # Ranks compare their methods, also if one rank has none.
    for mine in (method_of(hvd, "int8", block=256 + 16 * hvd.rank()), [int8, hvd.Compression.none][hvd.rank()]):
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"compression=int8\(block=256"):
            reduced(square, compression=mine)
