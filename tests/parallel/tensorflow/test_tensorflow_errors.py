# SPDX-License-Identifier: Apache-2.0
"""Failures reach every rank as TensorFlow's errors, fail one operation, and affect no other operation."""

import pytest
from harness.worlds import on_all_ranks

all_modes = pytest.mark.parametrize("mode", ["eager", "function", "graph"])


@all_modes
@on_all_ranks("shm2", limit_s=60)
def test_errors_on_every_rank(mode):
    from harness.sets import process_sets
    from harness.tensorflow_door import hvd, np, run, tf

    from horovod.common.process_sets import ProcessSet

    me = hvd.rank()
    mismatch, invalid = tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError

    def fails(error, text, function, *arrays):
        with pytest.raises(error, match=text):
            run(mode, lambda *values: function(*(values[0] if values else ())), arrays)

    fails(mismatch, "Mismatched ALLREDUCE tensor shapes", lambda x: hvd._allreduce(x, name="a"), np.ones(2 + me))
    dtype = np.float32 if me else np.float64
    fails(mismatch, "Mismatched data types", lambda x: hvd._allreduce(x, name="b"), np.ones(2, dtype))
    fails(mismatch, "Mismatched BROADCAST root ranks", lambda x: hvd.broadcast(x, me, name="c"), np.ones(2))
    op = hvd.Max if me else hvd.Min
    fails(mismatch, "Mismatched reduction operation", lambda x: hvd._allreduce(x, op=op, name="d"), np.ones(2))
    fails(mismatch, "Mismatched", lambda x: hvd._allreduce(x, prescale_factor=1.0 + me, name="e"), np.ones(2))
    operation = hvd.allgather if me else hvd._allreduce
    fails(mismatch, "Mismatched operations", lambda x: operation(x, name="f"), np.ones(2))
    fails(ValueError, "name must be a string", lambda x: hvd._allreduce(x, name="a\ud800b"), np.ones(2))
    fails(invalid, "root rank 7", lambda x: hvd.broadcast(x, 7), np.ones(2))
    fails(invalid, "splits", lambda x: hvd.alltoall(x, [3, 3]), np.ones(2))
    fails(invalid, "splits", lambda x: hvd.alltoall(x, [1, 1, 1]), np.ones(3))
    fails(invalid, "divide evenly", hvd.alltoall, np.ones(3))
    fails((invalid, ValueError), "at least one dimension", hvd._reducescatter, np.ones(()))
    fails(invalid, "bool", lambda x: hvd._allreduce(x, op=hvd.Average), np.ones(2, bool))
    fails(tf.errors.AbortedError, "Average and Sum", lambda x: hvd._reducescatter(x, op=hvd.Max), np.ones(2))
    stranger, wrong = ProcessSet([0]), ProcessSet([0])
    wrong.process_set_id = 99
    with process_sets([0]) as (only_first,):
        for error in (ValueError, invalid):  # even though a set of these ranks is registered
            fails(error, "not registered", lambda x: hvd._allreduce(x, process_set=stranger), np.ones(2))
            fails(error, "no process set with id 99", lambda x: hvd._allreduce(x, process_set=wrong), np.ones(2))
        fails(ValueError if mode == "eager" else invalid, "no process set with", lambda: hvd.size_op(99))
        if me == 1:
            fails(invalid, "not a member", lambda x: hvd._allreduce(x, process_set=only_first), np.ones(2))
        else:
            alone = run(mode, lambda x: hvd._allreduce(x[0], process_set=only_first), (np.ones(2),))
            np.testing.assert_array_equal(alone, [1.0] * 2)
    np.testing.assert_array_equal(run(mode, lambda x: hvd._allreduce(x[0]), (np.ones(2),)), [2.0] * 2)


@on_all_ranks("shm2")
def test_a_name_that_is_still_pending():
    from harness.tensorflow_door import hvd, np, session, tf

    with tf.Graph().as_default() as graph, session(graph) as opened:
        one = tf.ones(2)
        with tf.name_scope("a"):
            first = hvd._allreduce(one, name="same", ignore_name_scope=True)
        with tf.name_scope("b"):
            second = hvd._allreduce(one, name="same", ignore_name_scope=True)
        # The first cannot finish before both have started, because the other rank waits here for the outcome.
        if hvd.rank() == 0:
            with pytest.raises(tf.errors.InvalidArgumentError, match="'same' is already being processed"):
                opened.run([first, second])
        hvd.allgather(tf.ones(1), name="outcome")
        if hvd.rank() == 1:
            np.testing.assert_array_equal(opened.run(first), [2.0] * 2)


@on_all_ranks("shm2", limit_s=120)
def test_functions_outlive_worlds():
    from harness.tensorflow_door import compiled, hvd, np, tf

    me = hvd.rank()
    one = hvd.add_process_set([1])
    reduce = tf.function(lambda x: hvd._allreduce(x) + tf.cast(hvd.size_op() * 10 + hvd.rank_op(), tf.float32))
    alone = tf.function(lambda x: hvd._allreduce(x, process_set=one))
    jitted = tf.function(hvd._allreduce, jit_compile=True) if compiled.unavailable() is None else reduce
    np.testing.assert_array_equal(reduce(tf.ones(2)), [22.0 + me] * 2)
    jitted(tf.ones(2))
    if me == 1:
        np.testing.assert_array_equal(alone(tf.ones(2)), [1.0] * 2)
    hvd.shutdown()
    for step in (reduce, jitted, lambda x: hvd._allreduce(x), lambda x: hvd.rank_op()):
        with pytest.raises(tf.errors.FailedPreconditionError, match="not (been )?initialized"):
            step(tf.ones(2))
    hvd.init()
    np.testing.assert_array_equal(reduce(tf.ones(2)), [22.0 + me] * 2)
    jitted(tf.ones(2))
    if me == 1:
        with pytest.raises(tf.errors.InvalidArgumentError, match="process set"):
            alone(tf.ones(2))
    hvd.add_process_set([0])  # takes the id that the other set had in the engine
    hvd.add_process_set(one)
    if me == 1:
        np.testing.assert_array_equal(alone(tf.ones(2)), [1.0] * 2)
    for process_set in ([0], [1]):
        found = next(it for it in _sets() if it.ranks == process_set)
        hvd.remove_process_set(found)


def _sets():
    from horovod.common.context import default_context

    return [process_set for _, process_set, _ in default_context.sets.with_ranks()]
