# SPDX-License-Identifier: Apache-2.0
"""Elastic states of variables in eager mode and in sessions: save, restore and sync; and the elastic loop."""

import json
import signal

import numpy as np
import pytest
from harness.tensorflow_training import LIMIT, on_tensorflow_ranks
from testkit.launcher import horovodrun, python

pytestmark = pytest.mark.timeout(LIMIT)


@on_tensorflow_ranks("shm2")
def test_variables_in_eager_mode():
    from harness.tensorflow_training import door

    tf, hvd = door()
    me = hvd.rank()
    variables = [tf.Variable(float(me)), tf.Variable([me, me])]
    state = hvd.elastic.TensorFlowState(variables, epoch=me, seen=[me])
    variables[0].assign(9.0)
    state.epoch = 9
    state.seen.append(9)
    state.restore()
    assert (float(variables[0]), state.epoch, state.seen) == (float(me), me, [me])
    state.sync()
    assert (float(variables[0]), variables[1].numpy().tolist(), state.epoch, state.seen) == (0.0, [0, 0], 0, [0])
    variables[0].assign(5.0)
    state.epoch = 3
    state.commit()
    variables[0].assign(6.0)
    state.restore()
    assert (float(variables[0]), state.epoch) == (5.0, 3)
    with pytest.raises(ValueError, match="variables"):
        hvd.elastic.TensorFlowState()


@on_tensorflow_ranks("shm2")
def test_variables_in_a_session():
    from harness.tensorflow_training import door

    tf, hvd = door()
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=[float(hvd.rank())] * 2)
        session.run(tf.compat.v1.global_variables_initializer())
        state = hvd.elastic.TensorFlowState(session=session, epoch=hvd.rank())
        state.sync()
        assert (session.run(variable).tolist(), state.epoch) == ([0.0, 0.0], 0)
        session.run(variable.assign([7.0, 8.0]))
        state.restore()
        size = len(graph.get_operations())
        state.restore()
        state.sync()
        assert len(graph.get_operations()) == size  # the graph does not grow
        assert session.run(variable).tolist() == [0.0, 0.0]


@on_tensorflow_ranks("shm2")
def test_a_keras_model_and_its_optimizer():
    from harness.tensorflow_training import door

    tf, hvd = door()
    tf.keras.utils.set_random_seed(hvd.rank())
    layers = [tf.keras.layers.Dense(2), tf.keras.layers.BatchNormalization()]
    model = tf.keras.Sequential(layers)
    with pytest.raises(ValueError, match="built"):
        hvd.elastic.TensorFlowKerasState(model)
    model.build((None, 3))
    optimizer = tf.keras.optimizers.Adam(0.1)
    if hvd.rank() == 0:  # rank 0 has trained before, and the other rank is a new worker
        optimizer.build(model.trainable_variables)
        optimizer.iterations.assign(7)
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=hvd.rank())
    state.sync()
    assert int(optimizer.iterations) == 7
    assert state.batch == 0
    before = [weight.numpy().copy() for weight in model.weights]
    model.weights[0].assign(np.zeros_like(before[0]))
    optimizer.iterations.assign(8)
    state.restore()
    assert int(optimizer.iterations) == 7
    np.testing.assert_array_equal(model.weights[0].numpy(), before[0])
    return [weight.tobytes().hex() for weight in before]


@on_tensorflow_ranks("shm2")
def test_the_loop_goes_on_after_an_error_of_ours_alone():
    from harness.tensorflow_training import door

    tf, hvd = door()
    weight = tf.Variable(0.0)
    state = hvd.elastic.TensorFlowState([weight], step=0)
    troubles = [
        tf.errors.UnknownError(None, None, "HorovodAllreduce: rank 1 was lost"),
        tf.errors.UnknownError(None, None, "the file system is on fire"),
    ]
    reduce = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))

    @hvd.elastic.run
    def train(state):
        while state.step < 3:
            weight.assign_add(reduce(tf.constant(1.0)))
            state.step += 1
            if state.step == 2 and troubles:
                raise troubles.pop(0)
            state.commit()
        return float(weight)

    with pytest.raises(tf.errors.UnknownError, match="fire"):
        train(state)
    # The lost steps were repeated by a graph that was traced before.
    assert (state.step, float(weight)) == (2, 2.0 * hvd.size())
    state.restore()
    assert train(state) == 3.0 * hvd.size()


LOSES_A_RANK = """
import json, os, signal, sys

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # time to report: the launcher ends those who are left
import tensorflow as tf
import horovod.tensorflow as hvd
from horovod.tensorflow import compiled

hvd.init()
ones = tf.ones(3)
modes = {"eager": lambda x: hvd.allreduce(x, name="a")}
modes["function"] = tf.function(lambda x: hvd.allreduce(x, name="b") * 2)
if compiled.unavailable() is None:
    modes["jit"] = tf.function(lambda x: hvd.allreduce(x, name="c") * 2, jit_compile=True)


def in_session(x):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        session.run(hvd.allreduce([1.0], name="d"))


modes["session"] = in_session
for step in modes.values():  # what is slow the first time would outlast the launcher's patience later
    step(ones)
many = tf.function(lambda x: [hvd.allreduce(x * k, name=f"t{k}") for k in range(10)], autograph=False)
report = {}
try:
    for index in range(1000000):
        if hvd.rank() == 1 and index == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        many(tf.ones(1000))
except tf.errors.UnknownError as error:
    report["in flight"] = "HorovodAllreduce" in str(error) and "rank 1" in str(error)

for mode, step in modes.items():
    try:
        with hvd.elastic._lost_workers():
            step(ones)
    except hvd.HorovodInternalError as error:
        report[mode] = "rank 1 is lost" in str(error)
json.dump(report, open(sys.argv[1] + ".part", "w"))
os.rename(sys.argv[1] + ".part", sys.argv[1])
"""


def test_a_killed_rank_is_an_unknown_error_and_ours_in_every_mode(tmp_path):
    report = tmp_path / "report.json"
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = horovodrun("-np", "2", *python(LOSES_A_RANK), str(report), env=quiet, limit_s=180)
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    found = json.loads(report.read_text()) if report.exists() else done.stderr
    assert {*found} >= {"in flight", "eager", "function", "session"}, found
    assert all(found.values())


@on_tensorflow_ranks("shm2")
def test_commits_reuse_two_slots_and_outlive_the_job():
    import tempfile
    from pathlib import Path

    from harness.tensorflow_training import door

    from horovod.common.checkpoint_file import read, write
    from horovod.common.lineage import start_lineage

    tf, hvd = door()
    kinds = [tf.float32, tf.bfloat16, tf.int64, tf.bool]
    variables = [tf.Variable(tf.zeros([3], kind)) for kind in kinds]
    state = hvd.elastic.TensorFlowState(variables, step=0)
    seen = []
    for step in range(1, 6):
        for variable in variables:
            variable.assign(tf.cast(tf.fill([3], step), variable.dtype))
        state.step = step
        state.save()
        saved = state._variable_slots.current
        seen.append([array.__array_interface__["data"][0] for array in saved])
        assert [array.tolist() for array in saved] == [[step] * 3] * 3 + [[True] * 3]
        assert [array.dtype for array in saved] == [kind.as_numpy_dtype for kind in kinds]
    assert seen[0] == seen[2] == seen[4]
    assert seen[1] == seen[3]
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "x", state.pin_commit(), start_lineage())
        state.release_commit()
        loaded = read(Path(folder) / "x")
    others = [tf.Variable(tf.zeros([3], kind)) for kind in kinds]
    later = hvd.elastic.TensorFlowState(others, step=0)
    later.load_commit(loaded)
    assert later.step == 5
    assert all(one.numpy().tolist() == other.numpy().tolist() for one, other in zip(others, variables, strict=True))
    with pytest.raises(ValueError, match="does not fit"):
        hvd.elastic.TensorFlowState([tf.Variable([1.0])] * 4, step=0).load_commit(loaded)
