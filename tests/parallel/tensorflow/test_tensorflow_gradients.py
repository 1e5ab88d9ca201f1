# SPDX-License-Identifier: Apache-2.0
"""Gradients of the collectives equal those of the other framework APIs."""

import pytest
from harness.tensorflow_training import in_all_modes
from harness.worlds import on_all_ranks

all_modes = pytest.mark.parametrize("mode", ["eager", "function", "graph"])


def gradients(mode, collective, *shapes):
    """Return the gradients for ones of these shapes. The loss weighs the results by 0, 1, 2, … times (rank + 1)."""
    from harness.tensorflow_door import hvd, np, run, tf

    def weigh(one):
        numbers = tf.reshape(tf.range(tf.size(one)), tf.shape(one))
        return tf.reduce_sum(one * tf.cast(numbers * (hvd.rank() + 1), one.dtype))

    def differentiate(inputs):
        if mode == "graph":
            return tf.gradients(tf.add_n([weigh(one) for one in collective(inputs)]), list(inputs))
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            total = tf.add_n([weigh(one) for one in collective(inputs)])
        return tape.gradient(total, list(inputs))

    return run(mode, differentiate, tuple(np.ones(shape) for shape in shapes))


def weights(shape):
    import numpy as np

    return np.arange(np.prod(shape), dtype=np.float64).reshape(shape)


@pytest.mark.checked_numbers("gradients of collectives", against="the exact values")
@in_all_modes(limit_s=90)
def test_gradients(mode):
    from harness.tensorflow_door import hvd, np

    me, size = hvd.rank(), hvd.size()
    mean = (size + 1) / 2

    def check(collective, shape, expected):
        (result,) = gradients(mode, lambda inputs: [collective(inputs[0])], shape)
        np.testing.assert_allclose(result, expected, rtol=1e-12)

    check(lambda x: hvd._allreduce(x, op=hvd.Average), (2, 3), weights((2, 3)) * mean)
    factors = {"prescale_factor": 2.0, "postscale_factor": 0.25}
    check(lambda x: hvd._allreduce(x, op=hvd.Sum, **factors), (2, 3), weights((2, 3)) * mean * size / 2)
    total = size * (size + 1) // 2
    first = me * (me + 1) // 2
    check(hvd.allgather, (me + 1, 2), weights((total, 2))[first : first + me + 1] * mean)
    check(lambda x: hvd.broadcast(x, 1), (3,), weights(3) * mean * (me == 1))
    back = np.concatenate([weights(size)[me : me + 1] * (rank + 1) for rank in range(size)])
    check(hvd.alltoall, (size,), back)
    splits = [1] * size
    check(lambda x: hvd.alltoall(x, splits)[0], (size + 2,), np.concatenate([back, [0, 0]]))
    shares = [weights(2 if rank == 0 else 1) * (rank + 1) for rank in range(size)]
    check(lambda x: hvd._reducescatter(x, op=hvd.Average), (size + 1,), np.concatenate(shares))
    check(lambda x: hvd._reducescatter(x, op=hvd.Sum), (size + 1,), np.concatenate(shares) * size)


@all_modes
@on_all_ranks("shm2", limit_s=60)
def test_gradients_of_groups(mode):
    from harness.tensorflow_door import hvd, np

    me, size = hvd.rank(), hvd.size()
    for collective, expected in (
        (lambda x: hvd._grouped_allreduce(list(x), op=hvd.Average), [weights(2) * 1.5, weights((1, 2)) * 1.5]),
        (lambda x: hvd.grouped_allgather(list(x)), [weights(4)[2 * me :][:2] * 1.5, weights((2, 2))[me:][:1] * 1.5]),
    ):
        results = gradients(mode, collective, (2,), (1, 2))
        for result, one in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, one, rtol=1e-12)
    shares = [weights(1) * (rank + 1) for rank in range(size)]
    results = gradients(mode, lambda x: hvd._grouped_reducescatter(list(x), op=hvd.Sum), (2,), (2,))
    for result in results:
        np.testing.assert_allclose(result, np.concatenate(shares) * size, rtol=1e-12)


@on_all_ranks("shm2")
def test_second_derivative():
    from harness.tensorflow_door import hvd, np, tf

    @tf.function
    def twice(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                cubes = hvd._allreduce(x, op=hvd.Average) ** 3
            slope = inner.gradient(cubes, x)
        return outer.gradient(slope, x)

    np.testing.assert_allclose(twice(tf.constant([1.0, 2.0])), [6.0, 12.0])
