# SPDX-License-Identifier: Apache-2.0
"""DiLoCoCallback and LocalSGDCallback on each backend of Keras 3 against NumPy, saved states, and refusals."""

import numpy as np
import pytest
from harness.keras_worlds import KERAS_3
from harness.worlds import on_all_ranks

START_S = 200  # seconds; the first test of a world imports its frameworks on all ranks at once
EVERY, STEPS, BATCH, RATE = 4, 8, 4, 0.05


def rows(rank):
    random = np.random.default_rng(10 + rank)
    return random.normal(size=(STEPS * BATCH, 3)).astype("float32"), random.normal(size=(STEPS * BATCH, 1)).astype(
        "float32"
    )


def network(seed):
    from harness import keras_door as door

    start = np.random.default_rng(seed).normal(size=(3, 1)).astype("float32")
    model = door.keras.Sequential([door.keras.layers.Input((3,)), door.keras.layers.Dense(1, use_bias=False)])
    model.set_weights([start])
    return model, start.astype(float)


def trained(start, ranks, rounds, momentum, rate):
    """Return the global weights after some rounds of least squares, in float64."""
    world, outer = start, np.zeros_like(start)
    for number in range(rounds):
        workers = []
        for rank in range(ranks):
            (x, y), mine = rows(rank), world
            for step in range(number * EVERY, (number + 1) * EVERY):
                part = slice(step % STEPS * BATCH, (step % STEPS + 1) * BATCH)
                mine = mine - RATE * 2 / BATCH * x[part].T @ (x[part] @ mine - y[part])
            workers.append(mine)
        change = world - np.mean(workers, 0)
        outer = momentum * outer + change
        world = world - rate * (momentum * outer + change)
    return world


def fit(model, callback, epochs=1, **options):
    from harness import keras_door as door

    return door.fit(
        model, door.keras.optimizers.SGD(RATE), *rows(door.hvd.rank()), BATCH, epochs, callbacks=[callback], **options
    )


@on_all_ranks(*KERAS_3, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
@pytest.mark.checked_numbers("DiLoCo and local SGD in model.fit, on each backend", against="NumPy")
def test_fit_against_numpy():
    from harness import keras_door as door

    hvd, size = door.hvd, door.hvd.size()
    several = {} if door.BACKEND == "torch" else {"steps_per_execution": 2}  # Keras has it on the others alone
    cases = [
        (hvd.callbacks.DiLoCoCallback(every=EVERY), {}, (0.9, 0.7)),
        (hvd.callbacks.LocalSGDCallback(every=EVERY), several, (0.0, 1.0)),
    ]
    for callback, options, rule in cases:
        model, start = network(hvd.rank())  # training begins with the weights of rank 0
        fit(model, callback, epochs=2, **options)
        start = network(0)[1]
        door.check_same(door.weights(model), [trained(start, size, 2 * STEPS // EVERY, *rule)], 1e-4, 1e-5)
        door.same_everywhere(door.weights(model))


@on_all_ranks(*KERAS_3, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_a_saved_training_goes_on_and_what_is_refused():
    from harness import keras_door as door

    hvd, keras = door.hvd, door.keras
    whole, first, second = (network(0)[0] for _ in range(3))
    fit(whole, hvd.callbacks.DiLoCoCallback(every=EVERY), epochs=2)
    saved = hvd.callbacks.DiLoCoCallback(every=EVERY)
    fit(first, saved)
    second.set_weights(first.get_weights())
    loaded = hvd.callbacks.DiLoCoCallback(every=EVERY)
    loaded.load_state_dict(saved.state_dict())
    fit(second, loaded)
    door.check_same(door.weights(second), door.weights(whole), 0, 0)

    if door.BACKEND != "torch":
        with pytest.raises(ValueError, match="steps_per_execution=3 of model.compile does not divide every=4"):
            fit(whole, hvd.callbacks.DiLoCoCallback(every=EVERY), steps_per_execution=3)
    whole.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(RATE)), loss="mse")
    with pytest.raises(ValueError, match="compiled with hvd.DistributedOptimizer"):
        whole.fit(*rows(0), verbose=0, callbacks=[hvd.callbacks.LocalSGDCallback(every=EVERY)])
    with pytest.raises(ValueError, match="fragments=2 is more than the 1 layers"):
        fit(network(0)[0], hvd.callbacks.DiLoCoCallback(every=EVERY, fragments=2))


@on_all_ranks(*KERAS_3, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_a_layer_that_is_unfrozen_between_two_fits_is_exchanged():
    from harness import keras_door as door

    layers = door.keras.layers
    model = door.keras.Sequential([layers.Input((3,)), layers.Dense(4), layers.Dense(1)])
    random = np.random.default_rng(0)
    model.set_weights([random.normal(size=it.shape) for it in model.get_weights()])
    model.layers[0].trainable = False
    callback = door.hvd.callbacks.DiLoCoCallback(every=EVERY)
    before = model.layers[0].get_weights()[0]
    fit(model, callback)
    door.check_same([model.layers[0].get_weights()[0]], [before], 0, 0)
    model.layers[0].trainable = True
    fit(model, callback)
    assert not np.array_equal(model.layers[0].get_weights()[0], before)
    door.same_everywhere(door.weights(model))
