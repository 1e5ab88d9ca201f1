# SPDX-License-Identifier: Apache-2.0
"""The first step of a training: every rank makes it with the model of rank 0, whatever its own initial state.

The models are linear without a bias, and start at a constant that differs between ranks. NumPy computes what SGD makes
of rank 0's model on all of the data.
"""

import itertools
import tempfile
import warnings

import numpy as np
import pytest
from harness.keras_worlds import ALL, KERAS_2, ON_TENSORFLOW
from harness.worlds import on_all_ranks

START_S = 200  # seconds; the first test of a world imports its frameworks on all ranks at once
RATE, MOMENTUM, FEATURES = 0.05, 0.9, 4


def by_numpy(start, velocity=0.0, batches=range(4), rate=RATE):
    """Return the weights and velocities after SGD with these whole batches."""
    from harness import keras_door as door

    weights, velocity = np.full(FEATURES, start), np.full(FEATURES, velocity)
    x, y = door.data()
    for number in batches:
        rows = slice(number * door.BATCH, (number + 1) * door.BATCH)
        gradient = 2 * x[rows].T @ (x[rows] @ weights - y[rows, 0]) / door.BATCH
        velocity = MOMENTUM * velocity - rate * gradient
        weights = weights + velocity
    return weights, velocity


def begins(keras, kind, start):
    """Return a model whose weights are all `start`: built, unbuilt, subclassed, or with its own train_step."""
    constant = keras.initializers.Constant(start)
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer=constant)

    class Own(keras.Model):
        traces = 0

        def train_step(self, *args):
            self.traces += 1
            return super().train_step(*args)

    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = dense

        def call(self, x):
            return self.dense(x)

    if kind in ("built", "own"):
        inputs = keras.Input((FEATURES,))
        return (keras.Model if kind == "built" else Own)(inputs, dense(inputs))
    return keras.Sequential([dense]) if kind == "unbuilt" else Subclassed()


def trains(network, *others, before=(), optimizer=None, **options):
    """Fit this rank's part of the data. Return the weights and velocities afterwards, which are equal on all ranks."""
    from harness import keras_door as door

    hvd, keras = door.hvd, door.keras
    x, y = door.data()
    optimizer = optimizer or hvd.DistributedOptimizer(keras.optimizers.SGD(RATE, momentum=MOMENTUM))
    callbacks = [*before, hvd.callbacks.BroadcastGlobalVariablesCallback(0), *others]
    fit = {name: options.pop(name) for name in ("epochs", "initial_epoch") if name in options}
    if door.COMPILED:
        options.setdefault("jit_compile", False)
    network.compile(loss="mse", optimizer=optimizer, **options)
    batch = door.BATCH // hvd.size()
    network.fit(door.share(x), door.share(y), batch, shuffle=False, verbose=0, callbacks=callbacks, **fit)
    found = door.weights(network)[0].ravel(), velocities(optimizer)
    door.same_everywhere(found)
    assert "Broadcast" not in network.train_function.__qualname__
    return found


def velocities(optimizer):
    return np.asarray(optimizer.momentums[0]).ravel()


def check(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.checked_numbers("SGD whose ranks begin with different weights, from the first step on", against="NumPy")
@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_first_step_is_made_on_the_model_of_rank_0():
    from harness import keras_door as door

    keras, me = door.keras, door.hvd.rank()
    several = {} if door.BACKEND == "torch" else {"steps_per_execution": 4}
    cases = [("built", several), ("subclassed", {}), ("own", {})]
    if door.BACKEND == "tensorflow":  # with other backends fit itself builds every model
        cases += [("unbuilt", several), ("unbuilt", {"run_eagerly": True})]
    for kind, options in cases:
        network = begins(keras, kind, me + 1.0)
        check(trains(network, **options), by_numpy(1.0))
        if kind == "own" and door.BACKEND == "tensorflow":
            assert network.traces <= 2  # at most as many as without Horovod's callback
    if door.BACKEND == "tensorflow":
        only_one = begins(keras, "unbuilt", me + 1.0)
        if me == 1:
            only_one.build((None, FEATURES))
        check(trains(only_one), by_numpy(1.0))


@pytest.mark.checked_numbers("SGD that goes on from a checkpoint that only rank 0 restores", against="NumPy")
@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_checkpoint_that_only_rank_0_restores():
    """A callback before or after Horovod's restores it, or a second fit or a later epoch; with the optimizer's state.

    The learning rate in the checkpoint may be lower than the one in the script.
    """
    from harness import keras_door as door

    keras, me = door.keras, door.hvd.rank()

    class Restore(keras.callbacks.Callback):
        def __init__(self, start, with_state, rate=None):
            super().__init__()
            self.start, self.with_state, self.rate = start, with_state, rate

        def on_train_begin(self, logs=None):
            if me != 0:
                return
            model = self.model
            model.set_weights([np.full((FEATURES, 1), self.start, "float32")])
            if self.with_state:
                if not getattr(model.optimizer, "built", False):
                    model.optimizer.build(model.trainable_variables)
                model.optimizer.momentums[0].assign(np.full((FEATURES, 1), 0.5, "float32"))
            if self.rate is not None:
                model.optimizer.learning_rate = self.rate

    several = {} if door.BACKEND == "torch" else {"steps_per_execution": 4}
    network = begins(keras, "built", me + 1.0)
    check(trains(network, Restore(9.0, False), **several), by_numpy(9.0))
    check(trains(network, before=[Restore(8.0, True)], epochs=3, initial_epoch=2), by_numpy(8.0, 0.5))
    network = begins(keras, "own", me + 1.0)
    check(trains(network, Restore(7.0, True)), by_numpy(7.0, 0.5))
    network = begins(keras, "built", me + 1.0)
    check(trains(network, Restore(5.0, True, RATE / 10)), by_numpy(5.0, 0.5, rate=RATE / 10))
    if door.BACKEND == "tensorflow":  # with other backends fit itself builds every model
        unbuilt = begins(keras, "unbuilt", me + 1.0)
        if me == 0:  # rank 0 has restored it before the training
            unbuilt.build((None, FEATURES))
            unbuilt.set_weights([np.full((FEATURES, 1), 6.0, "float32")])
        check(trains(unbuilt, **several), by_numpy(6.0))


@on_all_ranks(*KERAS_2, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_hyperparameters_that_only_rank_0_restores():
    """Keras 2 keeps hyperparameters outside the optimizer's list of variables. A schedule is not a variable."""
    from harness import keras_door as door

    hvd, keras, me = door.hvd, door.keras, door.hvd.rank()
    optimizers = keras.optimizers
    decay = optimizers.schedules.ExponentialDecay(RATE, 10, 0.5)
    x, y = door.data()
    scheduled = [optimizers.SGD(decay), optimizers.legacy.SGD(decay)]
    plain = [optimizers.SGD(RATE / (me + 1)), optimizers.legacy.SGD(RATE / (me + 1), momentum=MOMENTUM / (me + 1))]
    for optimizer, is_scaled in itertools.product([*scheduled, *plain], (False, True)):
        distributed = hvd.DistributedOptimizer(optimizer)
        used = keras.mixed_precision.LossScaleOptimizer(distributed) if is_scaled else distributed
        network = begins(keras, "built", me + 1.0)
        network.compile(loss="mse", optimizer=used)
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        network.fit(door.share(x), door.share(y), door.BATCH // hvd.size(), verbose=0, callbacks=callbacks)
        door.same_everywhere(door.weights(network))
        if optimizer not in scheduled:
            np.testing.assert_allclose(float(distributed.learning_rate), RATE)


@pytest.mark.checked_numbers("SGD that goes on from a model that only rank 0 loads from a file", against="NumPy")
@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_model_that_only_rank_0_loads():
    """Names of a loaded model's variables do not contain the model's name."""
    from harness import keras_door as door

    keras, me = door.keras, door.hvd.rank()
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer=keras.initializers.Constant(me + 1.0))
    network = keras.Sequential([keras.layers.Input((FEATURES,)), dense])
    if me == 0:
        with tempfile.TemporaryDirectory() as folder:
            network.save(f"{folder}/model.keras")
            network = keras.models.load_model(f"{folder}/model.keras")
    check(trains(network), by_numpy(1.0))


@on_all_ranks(*ON_TENSORFLOW, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_callback_that_fails_leaves_the_model_as_it_was():
    from harness import keras_door as door

    keras, me = door.keras, door.hvd.rank()

    class Fail(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            raise RuntimeError("a callback failed")

    network = begins(keras, "unbuilt", me + 1.0)
    with pytest.raises(RuntimeError, match="a callback failed"):
        trains(network, Fail())
    check(trains(network), by_numpy(1.0))
    assert np.isfinite(network.evaluate(*door.data(), verbose=0))
    assert network.predict(door.data()[0], verbose=0).shape == (door.ROWS, 1)


@on_all_ranks(*ON_TENSORFLOW, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_model_that_only_the_first_step_can_build():
    """The model reads the values of a batch. Rank 0 warns, and after the first step all ranks have its weights."""
    from harness import keras_door as door

    keras, me = door.keras, door.hvd.rank()

    class LooksAtValues(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, use_bias=False, kernel_initializer=keras.initializers.Constant(me + 1.0))

        def call(self, x):
            return self.dense(x) * float(abs(x.numpy()).max() > 0)

    class Spy(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            door.same_everywhere(door.weights(self.model))

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trains(LooksAtValues(), Spy(), run_eagerly=True)
    mine = [str(one.message) for one in told if "cannot build the model" in str(one.message)]
    assert len(mine) == (me == 0), mine
    assert all("rank 0 got" in one and "Input layer" in one for one in mine)
