# SPDX-License-Identifier: Apache-2.0
"""Collectives inside functions that XLA compiles; where XLA cannot call them, the error names the remedy."""

import pytest
from harness.arrays import DTYPES, inputs, mine, reduced
from harness.worlds import on_all_ranks

# XLA's module has no names for float8 types yet.
TYPES = [dtype for dtype in DTYPES if not dtype.startswith("float8")]


@on_all_ranks("shm4", limit_s=120)
def test_collectives():
    from harness.tensorflow_door import check_all, compiled, hvd, np, run

    from horovod.common.rules import rows_of

    if compiled.unavailable() is not None:
        return None
    me, size = hvd.rank(), hvd.size()
    arrays = {dtype: inputs((2 * size + 1, 3), dtype, "jit") for dtype in TYPES if dtype != "bool"}
    moved = {dtype: inputs((2 * size, 3), dtype, "move") for dtype in TYPES}

    def all_at_once(values):
        numbers, everything = values
        group = hvd._grouped_allreduce(list(numbers.values()), op=hvd.Average, name="group", prescale_factor=0.3)
        return {
            "allreduce": {dtype: hvd._allreduce(one, op=hvd.Sum, name=f"r_{dtype}") for dtype, one in numbers.items()},
            "group": dict(zip(numbers, group, strict=True)),
            "scatter": {dtype: hvd._reducescatter(one, op=hvd.Sum) for dtype, one in numbers.items()},
            "gather": {dtype: hvd.allgather(one) for dtype, one in everything.items()},
            "broadcast": {dtype: hvd.broadcast(one, size - 1) for dtype, one in everything.items()},
            "alltoall": {dtype: hvd.alltoall(one) for dtype, one in everything.items()},
        }

    own = [{dtype: mine(one) for dtype, one in some.items()} for some in (arrays, moved)]
    results = run("jit", all_at_once, tuple(own))
    digests = [
        check_all(results["allreduce"], {dtype: reduced(one, "Sum") for dtype, one in arrays.items()}),
        check_all(results["group"], {dtype: reduced(one, "Average", 0.3) for dtype, one in arrays.items()}),
        check_all(results["gather"], {dtype: np.concatenate(one) for dtype, one in moved.items()}),
        check_all(results["broadcast"], {dtype: one[-1] for dtype, one in moved.items()}),
    ]
    first = sum(rows_of(index, 2 * size + 1, size) for index in range(me))
    share = slice(first, first + rows_of(me, 2 * size + 1, size))
    check_all(results["scatter"], {dtype: reduced(one, "Sum")[share] for dtype, one in arrays.items()})
    rows = slice(2 * me, 2 * me + 2)
    check_all(results["alltoall"], {dtype: np.concatenate([a[rows] for a in one]) for dtype, one in moved.items()})
    return digests


@pytest.mark.checked_numbers("a training step with jit_compile", against="a single process")
@on_all_ranks("shm2", limit_s=120)
def test_training_step_is_that_of_one_process():
    from harness.tensorflow_door import compiled, hvd, np, tf

    if compiled.unavailable() is not None:
        return
    inputs, targets = np.random.default_rng(0).normal(size=(2, 8, 3)).astype(np.float32)

    def train(rows, reduce):
        weights = tf.Variable(tf.ones([3, 3]))

        @tf.function(jit_compile=True)
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.tanh(x @ weights) - y) ** 2)
            (gradient,) = tape.gradient(loss, [weights])
            weights.assign_sub(0.1 * reduce(gradient))
            return loss

        for _ in range(5):
            step(inputs[rows], targets[rows])
        return weights.numpy()

    rows = slice(4 * hvd.rank(), 4 * hvd.rank() + 4)
    together = train(rows, lambda gradient: hvd._allreduce(gradient, op=hvd.Average))
    np.testing.assert_allclose(together, train(slice(None), lambda gradient: gradient), rtol=1e-5)


@on_all_ranks("shm2", limit_s=120)
def test_gradients_and_nested_functions():
    from harness.tensorflow_door import compiled, hvd, np, run, tf

    if compiled.unavailable() is not None:
        return
    me = hvd.rank()
    inner = tf.function(lambda x: hvd._allreduce(x, op=hvd.Average), autograph=False)

    def differentiate(values):
        results = []
        for collective in (inner, hvd.allgather, lambda x: hvd.broadcast(x, 1), hvd.alltoall, hvd._reducescatter):
            with tf.GradientTape() as tape:
                tape.watch(values[0])
                out = collective(values[0])
                total = tf.reduce_sum(out * tf.cast(tf.range(out.shape[0]), out.dtype) * values[1])
            results.append(tape.gradient(total, values[0]))
        return results

    expected = [
        np.arange(4) * 1.5,
        np.arange(8)[4 * me : 4 * me + 4] * 1.5,
        np.arange(4) * 1.5 * me,
        np.concatenate([np.arange(4)[2 * me : 2 * me + 2] * (rank + 1) for rank in range(2)]),
        np.concatenate([np.arange(2) * (rank + 1) for rank in range(2)]) * 2,
    ]
    for result, one in zip(run("jit", differentiate, (np.ones(4), np.array(me + 1.0))), expected, strict=True):
        np.testing.assert_allclose(result, one)


@on_all_ranks("shm2", limit_s=60)
def test_programs_that_differ_in_constants():
    from harness.tensorflow_door import compiled, hvd, np, run, tf

    if compiled.unavailable() is not None:
        return
    me = hvd.rank()

    def program(values):
        results = []
        for k in range(12):
            # On rank 0 the factor is one, so XLA removes it, and with it the dependency that would order the calls.
            x = values[0] * (me + 1) if k % 2 else tf.sin(values[0]) * 0 + 1
            results.append(hvd._allreduce(x * (k * me + 1), name=f"t{k}"))
        return tf.stack(results)

    result = run("jit", program, (np.ones(4),))
    expected = [1 + (2 if k % 2 else 1) * (k + 1) for k in range(12)]
    np.testing.assert_array_equal(result[:, 0], expected)


@on_all_ranks("shm2", limit_s=60)
def test_what_cannot_be_compiled_says_what_to_do():
    from harness.tensorflow_door import compiled, hvd, np, run, tf

    if compiled.unavailable() is not None:
        with pytest.raises(NotImplementedError, match=r"jit_compile=True: it needs TensorFlow 2\.19 or newer"):
            run("jit", lambda values: hvd._allreduce(values[0]), (np.ones(2),))
        return
    with pytest.raises(NotImplementedError, match="alltoall with splits depends on the other ranks"):
        run("jit", lambda values: hvd.alltoall(values[0], [1, 1]), (np.ones(2),))
    with pytest.raises(NotImplementedError, match="hvd.join"):
        run("jit", hvd.join)
    unknown = tf.function(hvd._allreduce, jit_compile=True, input_signature=[tf.TensorSpec([None])])
    with pytest.raises(NotImplementedError, match="shapes must be known"):
        unknown(tf.ones(2))
    with pytest.raises(tf.errors.FailedPreconditionError, match="HorovodAllreduce: Mismatched ALLREDUCE tensor shapes"):
        run("jit", lambda values: hvd._allreduce(values[0], name="a"), (np.ones(2 + hvd.rank()),))
    with pytest.raises(tf.errors.FailedPreconditionError, match="need the same number of rows"):
        run("jit", lambda values: hvd.allgather(values[0], name="b"), (np.ones(2 + hvd.rank()),))
