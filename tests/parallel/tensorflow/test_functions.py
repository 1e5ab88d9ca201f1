# SPDX-License-Identifier: Apache-2.0
"""Broadcasts of variables and objects to all ranks, in eager mode and in sessions."""

import numpy as np
import pytest
from harness.tensorflow_training import LIMIT, on_tensorflow_ranks

pytestmark = pytest.mark.timeout(LIMIT)


@on_tensorflow_ranks("shm2")
def test_variables():
    from harness.tensorflow_training import door

    tf, hvd = door()
    me = hvd.rank()
    for inplace in (False, True):
        variables = [
            tf.Variable(tf.fill([3, 2], float(me))),
            tf.Variable(me, dtype=tf.int64),
            tf.Variable([me == 1] * 3),
            tf.Variable(tf.fill([2], me), dtype=tf.int32),
        ]
        hvd.broadcast_variables(variables, root_rank=1, inplace=inplace)
        assert [np.asarray(variable).ravel()[0] for variable in variables] == [1.0, 1, True, 1]
    hvd.broadcast_variables([], root_rank=0)
    tf.keras.utils.set_random_seed(me)
    model = tf.keras.Sequential([tf.keras.layers.Dense(2), tf.keras.layers.BatchNormalization()])
    model.build((None, 3))
    model.optimizer = tf.keras.optimizers.Adam(0.1)
    model.optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables, root_rank=0)
    hvd.broadcast_variables(model.optimizer.variables, root_rank=0)
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        hvd.broadcast_variables(variables, root_rank=7)
    return [np.asarray(weight).tobytes().hex() for weight in model.variables]


@on_tensorflow_ranks("shm2")
def test_variables_of_a_graph():
    from harness.tensorflow_training import door

    tf, hvd = door()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        old = tf.compat.v1.get_variable("old", initializer=float(hvd.rank()), use_resource=False)
        new = tf.compat.v1.get_variable("new", initializer=[hvd.rank()] * 2, use_resource=True)
        operation = hvd.broadcast_global_variables(1)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(operation)
        values = session.run([old, new])
        assert values[0] == 1
        assert values[1].tolist() == [1, 1]
        broadcast = hvd.broadcast_object_fn(root_rank=1, session=session, name="again")
        assert [broadcast(hvd.rank() * number) for number in (1, 2)] == [1, 2]
        unnamed = hvd.broadcast_object_fn(root_rank=1, session=session)
        assert [unnamed(number if hvd.rank() else None) for number in ("one", 2)] == ["one", 2]
        assert hvd.broadcast_object((1, 2) if hvd.rank() == 0 else None, 0, session) == (1, 2)
        assert hvd.allgather_object(None if hvd.rank() else "zero", session) == ["zero", None]
    with tf.Graph().as_default():
        variable = tf.Variable(float(hvd.rank()))
        hook = hvd.BroadcastGlobalVariablesHook(0)
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            assert session.run(variable) == 0


@on_tensorflow_ranks("shm2")
def test_objects():
    from harness.tensorflow_training import door

    _, hvd = door()
    me = hvd.rank()
    assert hvd.broadcast_object({"rank": me, "list": [1, 2]}, root_rank=1) == {"rank": 1, "list": [1, 2]}
    assert hvd.allgather_object((me, "x" * me)) == [(rank, "x" * rank) for rank in range(hvd.size())]
    assert hvd.broadcast_object({"rate": 0.1} if me == 0 else None, 0) == {"rate": 0.1}
    assert hvd.allgather_object(None if me else "zero") == ["zero", None]
