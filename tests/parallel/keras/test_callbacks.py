# SPDX-License-Identifier: Apache-2.0
"""Callbacks, collectives on values, and elastic training with model.fit."""

import contextlib
import warnings

import numpy as np
import pytest
from harness.keras_worlds import ALL
from harness.worlds import on_all_ranks

from horovod.common.exceptions import HorovodWarning

START_S = 200  # seconds; the first test of a world imports its frameworks on all ranks at once


@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_collectives_on_values():
    from harness import keras_door as door

    hvd, me = door.hvd, door.hvd.rank()
    np.testing.assert_allclose(np.asarray(hvd.allreduce(float(me), name="number")), 0.5)
    np.testing.assert_allclose(np.asarray(hvd.allreduce(np.full(3, me, "float32"), op=hvd.Sum)), [1.0] * 3)
    np.testing.assert_allclose(np.asarray(hvd.allgather(np.full((1, 2), me, "float32"))), [[0, 0], [1, 1]])
    np.testing.assert_allclose(np.asarray(hvd.broadcast(np.full(2, me, "float32"), 1)), [1, 1])
    np.testing.assert_allclose(
        np.asarray(hvd.reducescatter(np.arange(4, dtype="float32"), op=hvd.Sum)).sum(), [2, 10][me]
    )
    assert hvd.broadcast_object({"rate": 0.1} if me == 0 else None, 0) == {"rate": 0.1}
    assert hvd.allgather_object(None if me else "zero") == ["zero", None]
    with pytest.raises(RuntimeError, match="BroadcastGlobalVariablesCallback"):
        hvd.broadcast_global_variables(0)


@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_broadcast_and_metric_average():
    from harness import keras_door as door

    hvd = door.hvd
    x, y = door.data()
    network = door.model(seed=10 * hvd.rank())  # every rank starts with different weights
    local = network.layers[-1].trainable_weights[1]
    seen = []
    optimizer = hvd.DistributedOptimizer(door.keras.optimizers.Adam(0.01))

    class Spy(door.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(dict(logs))

    averages = hvd.callbacks.MetricAverageCallback()
    history = door.fit(
        network,
        optimizer,
        door.share(x),
        door.share(y),
        door.BATCH // hvd.size(),
        epochs=2,
        metrics=["mae"],
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), averages, Spy()],
    )
    door.same_everywhere(door.weights(network))
    door.same_everywhere([np.asarray(one) for one in network.optimizer.variables])
    assert history.history["loss"] == [logs["loss"] for logs in seen]
    door.same_everywhere([np.array(history.history["loss"]), np.array(history.history["mae"])])

    network = door.model(seed=10 * hvd.rank())
    local = network.layers[-1].trainable_weights[0]
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[local])
    frozen = door.keras.optimizers.SGD(0.0)
    with _told_that_ranks_train_alone(hvd):
        door.fit(
            network, frozen, door.share(x), door.share(y), door.BATCH // hvd.size(), callbacks=[callback, averages]
        )
    door.same_everywhere(door.weights(network)[:2])
    kernels = hvd.allgather_object(np.asarray(local).tolist(), "kernels")
    assert kernels[0] != kernels[1]
    with pytest.raises(ValueError, match="validation data to all of them or to none"):
        averages.on_epoch_end(0, {"loss": 1.0} if hvd.rank() == 0 else {"loss": 1.0, "val_loss": 1.0})


@contextlib.contextmanager
def _told_that_ranks_train_alone(hvd):
    """Check that a fit whose optimizer is not distributed warns once, on rank 0."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield
    mine = [one for one in told if issubclass(one.category, HorovodWarning)]
    assert len(mine) == (hvd.rank() == 0), mine
    for one in mine:
        assert "SGD, is not distributed: each of the 2 ranks" in str(one.message)
        assert one.filename.endswith("keras_door.py")  # the caller of fit


@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_learning_rates():
    from harness import keras_door as door

    hvd, keras = door.hvd, door.keras
    x, y = door.data()
    rates = []

    class Spy(keras.callbacks.Callback):
        def on_batch_begin(self, batch, logs=None):
            rates.append(float(np.asarray(self.model.optimizer.learning_rate)))

    def run(callback, momentum=0.0, epochs=3):
        rates.clear()
        network = door.model()
        sgd = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=momentum))
        return door.fit(network, sgd, x, y, 16, epochs=epochs, callbacks=[callback, Spy()]), network

    history, _ = run(hvd.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2, verbose=hvd.rank() == 0))
    # The rate grows from half of its value to all of it within four batches, because there are two ranks.
    np.testing.assert_allclose(rates, [0.0625, 0.075, 0.0875, 0.1, 0.1, 0.1], rtol=1e-5)
    np.testing.assert_allclose(history.history["lr"], [0.075, 0.1, 0.1], rtol=1e-5)
    run(hvd.callbacks.LearningRateScheduleCallback(0.1, multiplier=0.1, start_epoch=1))
    np.testing.assert_allclose(rates, [0.1, 0.1, 0.1, 0.1, 0.01, 0.01], rtol=1e-5)
    smooth = hvd.callbacks.LearningRateScheduleCallback(
        0.1, multiplier=lambda epoch: 1 + epoch, end_epoch=2, staircase=False, steps_per_epoch=2
    )
    _, network = run(smooth, momentum=0.9)
    np.testing.assert_allclose(rates, [0.1, 0.15, 0.2, 0.25, 0.25, 0.25], rtol=1e-5)
    with pytest.raises(ValueError, match="initial_lr"):
        hvd.callbacks.LearningRateScheduleCallback(None, multiplier=1.0)
    return [one.tobytes() for one in door.weights(network)]


@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_momentum_follows_the_learning_rate():
    """From the second batch on the rate is twice as large, and the velocity is scaled with it."""
    from harness import keras_door as door

    hvd, keras = door.hvd, door.keras
    x, y = door.data(16)
    network = door.model()
    twice = hvd.callbacks.LearningRateScheduleCallback(
        0.01, multiplier=lambda epoch: 1.0 if epoch == 0 else 2.0, staircase=False, steps_per_epoch=2
    )
    before = door.weights(network)
    snapshots = []

    class Spy(keras.callbacks.Callback):
        def on_batch_end(self, batch, logs=None):
            snapshots.append(door.weights(self.model))

    with _told_that_ranks_train_alone(hvd):
        door.fit(network, keras.optimizers.SGD(0.01, momentum=0.5), x, 0 * y, 8, callbacks=[twice, Spy()])
    plain = door.model()
    plain.set_weights(snapshots[0])
    door.fit(plain, keras.optimizers.SGD(0.02), x[8:], 0 * y[8:], 8)
    for after, without, one, start in zip(snapshots[1], door.weights(plain), snapshots[0], before, strict=True):
        np.testing.assert_allclose(after - without, (one - start) * 0.5 * 2.0, rtol=1e-2, atol=1e-5)


@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_elastic_state_goes_on_from_the_last_commit():
    from harness import keras_door as door

    hvd, elastic = door.hvd, door.hvd.elastic
    x, y = door.data()
    network = door.model(seed=10 * hvd.rank())
    network.compile(loss="mse", optimizer=hvd.DistributedOptimizer(door.keras.optimizers.Adam(0.01)))
    state = elastic.KerasState(network, epoch=0, batch=0)
    with pytest.raises(ValueError, match="built|weights"):
        elastic.KerasState(door.keras.Sequential([door.keras.layers.Dense(1)]))
    failures, starts, committed = iter([True]), [], []

    class Fail(door.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            committed.append(door.weights(self.model))
            if len(committed) == 2 and next(failures, False):
                raise hvd.HorovodInternalError("a worker was lost")

    @elastic.run
    def train(state):
        starts.append((state.epoch, state.batch, door.weights(state.model)))
        callbacks = [
            elastic.UpdateEpochStateCallback(state),
            elastic.UpdateBatchStateCallback(state),
            Fail(),
            elastic.CommitStateCallback(state, batches_per_commit=3),
        ]
        batch = door.BATCH // hvd.size()
        state.model.fit(
            door.share(x), door.share(y), batch, 3 - state.epoch, shuffle=False, verbose=0, callbacks=callbacks
        )

    train(state)
    assert [start[:2] for start in starts] == [(0, 0), (1, 2)]
    assert (state.epoch, state.batch) == (3, 0)
    door.same_everywhere(starts[0][2])
    door.same_everywhere(starts[1][2])
    door.same_everywhere(door.weights(network))


@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_elastic_state_holds_the_learning_rate():
    """A new worker takes the rate from rank 0, and restore resets it. Commits on disk hold the usual variables."""
    from harness import keras_door as door

    hvd, optimizers = door.hvd, door.keras.optimizers
    kinds = [optimizers.SGD] if door.IS_KERAS3 else [optimizers.SGD, optimizers.legacy.SGD]
    for kind in kinds:
        network = door.model(seed=hvd.rank())
        network.compile(loss="mse", optimizer=hvd.DistributedOptimizer(kind(0.5 / (hvd.rank() + 1))))
        state = hvd.elastic.KerasState(network, epoch=0, batch=0)
        state.sync()
        assert float(network.optimizer.learning_rate) == 0.5
        network.optimizer.learning_rate = 0.25
        state.commit()
        network.optimizer.learning_rate = 0.125
        state.restore()
        assert float(network.optimizer.learning_rate) == 0.25

        own = network.optimizer.variables
        content = state.pin_commit()
        state.release_commit()
        weights = network.variables if door.BACKEND == "tensorflow" else network.weights
        assert len(content["variables"]) == len(weights) + len(own() if callable(own) else own)
        before = door.weights(network)
        network.set_weights([one + 1 for one in before])
        state.load_commit(content)
        door.check_same(door.weights(network), before)
        state.restore()
        assert float(network.optimizer.learning_rate) == 0.25
