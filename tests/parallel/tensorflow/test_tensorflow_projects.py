# SPDX-License-Identifier: Apache-2.0
"""Uses of horovod.tensorflow by public projects: their calls in their order, in code written for this test.

docs/projects.md names the projects, the files that were read and their commits. The first line of each test names the
project.
"""

import types

import numpy as np
import pytest
from harness.tensorflow_training import LIMIT, on_tensorflow_ranks

pytestmark = pytest.mark.timeout(LIMIT)


@on_tensorflow_ranks("shm2")
def test_solver_that_broadcasts_after_its_first_step():
    """athena-team/athena: wraps the tape after recording, clips gradients, also broadcasts optimizer variables."""
    from harness.tensorflow_training import data, door, loss_of, make_variables, share

    tf, hvd = door()
    hvd.init()
    assert tf.config.experimental.list_physical_devices("GPU") == []
    variables = make_variables(tf, seed=3 + hvd.rank())
    optimizer = tf.keras.optimizers.Adam(0.05)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(tf, variables, x, y)
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, variables)
        clipped = [None if one is None else tf.clip_by_norm(one, 0.5) for one in gradients]
        optimizer.apply_gradients(zip(clipped, variables, strict=True))
        return loss

    signature = [tf.TensorSpec([None, 4], tf.float64), tf.TensorSpec([None], tf.float64)]
    run = tf.function(step, input_signature=signature)
    for batch, (x, y) in enumerate(zip(*data(), strict=True)):
        run(share(x, hvd.rank(), hvd.size()), share(y, hvd.rank(), hvd.size()))
        if batch == 0:
            before = hvd.allgather(variables[1][None])
            assert not np.array_equal(before[0], before[1])
            hvd.broadcast_variables(variables, root_rank=0)
            state = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
            hvd.broadcast_variables(state, root_rank=0)
    return [variable.numpy().tobytes().hex() for variable in variables]


@on_tensorflow_ranks("shm2")
def test_trainer_with_a_graph_and_a_plain_session():
    """deepmodeling/deepmd-kit: AdamOptimizer with a decaying rate, broadcast_global_variables called by hand."""
    from harness.tensorflow_training import check_close, data, door, loss_of, make_variables, share

    tf, hvd = door()
    v1 = tf.compat.v1
    batches = list(zip(*data(), strict=True))

    def train(batches, wrap, seed, broadcast):
        with tf.Graph().as_default():
            step = v1.train.get_or_create_global_step()
            variables = make_variables(tf, seed)
            x, y = v1.placeholder(tf.float64, [None, 4]), v1.placeholder(tf.float64, [None])
            optimizer = wrap(v1.train.AdamOptimizer(v1.train.exponential_decay(0.02, step, 2, 0.9) * 2.0))
            minimize = optimizer.minimize(
                loss_of(tf, variables, x, y), global_step=step, var_list=v1.trainable_variables(), name="train_step"
            )
            train_op = tf.group(minimize)
            with v1.Session(config=v1.ConfigProto(intra_op_parallelism_threads=1)) as session:
                session.run(v1.global_variables_initializer())
                if broadcast:
                    session.run(hvd.broadcast_global_variables(0))
                for inputs, targets in batches:
                    session.run(train_op, {x: inputs, y: targets})
                return session.run([*variables, step])

    alone = train(batches, lambda optimizer: optimizer, 3, broadcast=False)
    mine = [tuple(share(part, hvd.rank(), hvd.size()) for part in batch) for batch in batches]
    together = train(mine, hvd.DistributedOptimizer, 3 + hvd.rank(), broadcast=True)
    check_close(together, alone)


@on_tensorflow_ranks("shm2")
def test_embeddings_that_live_on_one_rank_each():
    """NVIDIA-Merlin/distributed-embeddings: alltoall of ids and rows, local sources in a patched tape."""
    from harness.tensorflow_training import door

    tf, hvd = door()
    import horovod

    assert horovod.__version__ >= "0.27.0"  # compared as text, as in the project
    size, me, rows, width = hvd.size(), hvd.rank(), 4, 3
    random = np.random.default_rng(5)
    tables = random.normal(size=(size, 6, width))
    ids = random.integers(0, 6, size=(size * rows, size))  # ids of the whole batch, one column for each table
    dense_start = random.normal(size=(size * width, 1))

    def wrapped(tape):
        def gradient(self, target, sources):
            return self.raw_gradient(target, sources, use_generic_names=True)

        tape = hvd.DistributedGradientTape(tape)
        for variable in tape.watched_variables():
            if hasattr(variable, "is_local"):
                tape.register_local_source(variable)
        tape.raw_gradient = tape.gradient
        tape.gradient = types.MethodType(gradient, tape)
        return tape

    mine, dense = tf.Variable(tables[me]), tf.Variable(dense_start)
    mine.is_local = True
    local_ids = tf.constant(ids[me * rows : (me + 1) * rows])
    assert hvd.allgather([rows]).numpy().tolist() == [rows] * size

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            flat = tf.concat([local_ids[:, table] for table in range(size)], 0)
            asked, _ = hvd.alltoall(flat, splits=[rows] * size, name="inp_dp_to_mp")
            found = tf.reshape(tf.gather(mine, asked), [-1])
            answers = tf.split(hvd.alltoall(found, name="out_mp_to_dp"), size)
            features = tf.concat([tf.reshape(one, [rows, width]) for one in answers], 1)
            loss = tf.reduce_mean((features @ dense) ** 2)
        return wrapped(tape).gradient(loss, [mine, dense])

    found = step()
    hvd.broadcast_variables([dense], root_rank=0)
    for _ in range(size):
        assert hvd.broadcast_object(0) == 0  # the project uses this as a lock by which ranks load their tables in turn

    all_tables, whole = [tf.Variable(one) for one in tables], tf.Variable(dense_start)
    with tf.GradientTape() as tape:
        features = tf.concat([tf.gather(table, ids[:, index]) for index, table in enumerate(all_tables)], 1)
        loss = tf.reduce_mean((features @ whole) ** 2)
    *expected_tables, expected = tape.gradient(loss, [*all_tables, whole])
    np.testing.assert_allclose(tf.convert_to_tensor(found[0]), tf.convert_to_tensor(expected_tables[me]), rtol=1e-9)
    np.testing.assert_allclose(found[1], expected, rtol=1e-9)
