# SPDX-License-Identifier: Apache-2.0
"""Allreduce and reducescatter as users call them: operations, factors, compression, slices, process sets."""

import numpy as np
import pytest
from harness.arrays import AVERAGES_OF_TWO, averages_of_two, check_equal
from harness.tensorflow_training import LIMIT, on_tensorflow_ranks

pytestmark = pytest.mark.timeout(LIMIT)


@on_tensorflow_ranks("shm2")
def test_operations_and_factors():
    from harness.tensorflow_training import door

    tf, hvd = door()
    ranks = np.arange(hvd.size(), dtype=np.float32)
    mine = tf.fill([3], ranks[hvd.rank()] + 1)
    expected = {hvd.Average: (ranks + 1).mean(), hvd.Sum: (ranks + 1).sum(), hvd.Min: 1, hvd.Max: ranks[-1] + 1}
    for op, value in expected.items():
        for run in (lambda f: f(), lambda f: tf.function(f)()):
            np.testing.assert_allclose(run(lambda op=op: hvd.allreduce(mine, op=op)), [value] * 3)
    scaled = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5)
    np.testing.assert_allclose(scaled, [(ranks + 1).sum()] * 3)
    with pytest.warns(DeprecationWarning, match="average is deprecated"):
        np.testing.assert_allclose(hvd.allreduce(mine, average=False), [(ranks + 1).sum()] * 3)
    with pytest.raises(ValueError, match="not both"):
        hvd.allreduce(mine, average=True, op=hvd.Sum)
    # Values that TensorFlow can convert to tensors are accepted too.
    np.testing.assert_allclose(hvd.allreduce(np.ones(2), op=hvd.Sum), [hvd.size()] * 2)
    np.testing.assert_allclose(hvd.allreduce(tf.Variable([2.0]), op=hvd.Sum), [2.0 * hvd.size()])


@pytest.mark.checked_numbers(
    "averages of integer tensors under 64 bits whose sums overflow", against="the exact quotient"
)
@on_tensorflow_ranks("shm2")
def test_the_average_of_integers_is_exact():
    """Reduce eagerly, in a graph, and in a function that XLA compiles."""
    from harness.tensorflow_training import door, modes

    tf, hvd = door()
    cases = {dtype: averages_of_two(dtype, hvd.rank()) for dtype in AVERAGES_OF_TWO}
    mine = {dtype: tf.constant(own) for dtype, (own, _) in cases.items()}

    def average_all(tensors):
        return {
            dtype: (hvd.allreduce(one), *hvd.grouped_allreduce([one, one]), hvd.reducescatter(one))
            for dtype, one in tensors.items()
        }

    for mode in modes():
        run = average_all if mode == "eager" else tf.function(average_all, jit_compile=True if mode == "jit" else None)
        for dtype, (*whole, share) in run(mine).items():
            expected = cases[dtype][1]
            for result in whole:
                check_equal(np.asarray(result), expected)
            check_equal(np.asarray(share), np.array_split(expected, 2)[hvd.rank()])


@on_tensorflow_ranks("shm2")
def test_compression():
    from harness.tensorflow_training import door

    tf, hvd = door()

    seen = []

    class Doubling(hvd.Compressor):
        @staticmethod
        def compress(tensor):
            seen.append(tensor.dtype)
            return tensor * 2, "context"

        @staticmethod
        def decompress(tensor, ctx):
            assert ctx == "context"
            return tensor / 2

    for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16, Doubling):
        floats = hvd.allreduce(tf.constant([1.5, 2.5]), compression=compression, op=hvd.Sum)
        assert floats.dtype == tf.float32
        np.testing.assert_allclose(floats, [1.5 * hvd.size(), 2.5 * hvd.size()])
        both = hvd.grouped_allreduce([tf.constant([0.5], tf.float64), tf.constant(4)], compression=compression)
        assert [each.dtype for each in both] == [tf.float64, tf.float64 if compression is Doubling else tf.int32]
        np.testing.assert_allclose([float(each) for each in (both[0][0], both[1])], [0.5, 4])
        rows = hvd.reducescatter(tf.ones([hvd.size(), 2]), compression=compression, op=hvd.Sum)
        np.testing.assert_allclose(rows, [[hvd.size()] * 2])
    assert len(seen) == 4


@on_tensorflow_ranks("shm2")
def test_slices_of_integers_are_divided_truly():
    from harness.tensorflow_training import door

    tf, hvd = door()
    for dtype in (tf.int32, tf.int64, tf.uint8):
        slices = tf.IndexedSlices(tf.constant([[1, 3]], dtype), tf.constant([hvd.rank()]), tf.constant([5, 2]))
        mean = [[1 / hvd.size(), 3 / hvd.size()]] * hvd.size()
        for run in (lambda f: f(), lambda f: tf.function(f)()):
            average = run(lambda slices=slices: hvd.allreduce(slices, op=hvd.Average))
            assert average.values.dtype.is_floating
            np.testing.assert_allclose(average.values, mean, rtol=1e-6)
            total = run(lambda slices=slices: hvd.allreduce(slices, op=hvd.Sum))
            assert total.values.dtype == dtype


@on_tensorflow_ranks("shm2")
def test_slices_are_gathered():
    from harness.tensorflow_training import door

    tf, hvd = door()
    me, size = hvd.rank(), hvd.size()

    def slices():
        values = tf.fill([me + 1, 2], float(me + 1))
        return tf.IndexedSlices(values, tf.range(me + 1, dtype=tf.int64), dense_shape=tf.constant([5, 2], tf.int64))

    expected = np.zeros((5, 2))
    for rank in range(size):
        expected[: rank + 1] += rank + 1
    for compression in (hvd.Compression.none, hvd.Compression.fp16):
        for op, divisor in ((hvd.Sum, 1), (hvd.Average, size)):
            result = hvd.allreduce(slices(), op=op, compression=compression)
            assert result.values.shape == (size * (size + 1) // 2, 2)
            np.testing.assert_allclose(tf.convert_to_tensor(result), expected / divisor)
    other = tf.IndexedSlices(tf.ones([1, 3]), tf.constant([me]), dense_shape=tf.constant([4, 3]))
    mixed = tf.function(lambda: hvd.grouped_allreduce([tf.ones(2), slices(), tf.ones([]), other], op=hvd.Sum))()
    assert [isinstance(each, tf.IndexedSlices) for each in mixed] == [False, True, False, True]
    np.testing.assert_allclose(tf.convert_to_tensor(mixed[1]), expected)
    assert tf.convert_to_tensor(mixed[3]).shape == (4, 3)  # each result has its own shape
    np.testing.assert_allclose(mixed[0], [size] * 2)
    for refused in ({"op": hvd.Max}, {"op": hvd.Sum, "prescale_factor": 2.0}, {"op": hvd.Adasum}):
        with pytest.raises(NotImplementedError, match="IndexedSlices"):
            hvd.allreduce(slices(), **refused)
    with pytest.raises(NotImplementedError, match="dense tensors"):
        hvd.reducescatter(slices())


@on_tensorflow_ranks("shm2")
def test_groups_and_shares():
    from harness.tensorflow_training import door

    tf, hvd = door()
    me, size = hvd.rank(), hvd.size()
    assert hvd.grouped_allreduce([]) == []
    assert hvd.grouped_reducescatter([]) == []
    tensors = [tf.fill([size + 1, 2], float(me)), tf.ones([size], tf.float64)]
    one, other = hvd.grouped_reducescatter(tensors, op=hvd.Sum, prescale_factor=2.0)
    assert one.shape == (2 if me == 0 else 1, 2)
    np.testing.assert_allclose(one, np.full(one.shape, size * (size - 1)))
    np.testing.assert_allclose(other, [2.0 * size])
    np.testing.assert_allclose(hvd.reducescatter(tf.range(size, dtype=tf.float32)), [float(me)])


@on_tensorflow_ranks("shm4")
def test_process_sets():
    from harness.sets import process_sets
    from harness.tensorflow_training import door

    tf, hvd = door()
    with process_sets([0, 2], [1, 3]) as (even, odd):
        mine = odd if hvd.rank() % 2 else even
        total = float(sum(mine.ranks))
        np.testing.assert_allclose(hvd.allreduce(tf.constant(float(hvd.rank())), op=hvd.Sum, process_set=mine), total)
        grouped = hvd.grouped_allreduce([tf.constant([float(hvd.rank())])] * 2, process_set=mine)
        np.testing.assert_allclose(tf.concat(grouped, 0), [total / 2] * 2)
        slices = tf.IndexedSlices(tf.fill([1, 1], float(hvd.rank())), tf.constant([0]), dense_shape=tf.constant([1, 1]))
        mean = tf.convert_to_tensor(hvd.allreduce(slices, process_set=mine))
        np.testing.assert_allclose(mean, [[total / 2]])
        variable = tf.Variable(float(hvd.rank()))
        with tf.GradientTape() as tape:
            loss = variable * hvd.rank()
        tape = hvd.DistributedGradientTape(tape, process_set=even)
        expected = 1.0 if mine is even else float(hvd.rank())  # a rank that is not a member keeps its own gradient
        np.testing.assert_allclose(tape.gradient(loss, variable), expected)
        hvd.broadcast_variables([variable], root_rank=mine.ranks[1], process_set=mine)
        assert float(variable) == mine.ranks[1]
        assert hvd.broadcast_object(hvd.rank(), mine.ranks[0], process_set=mine) == mine.ranks[0]
        assert hvd.allgather_object(hvd.rank(), process_set=mine) == mine.ranks
