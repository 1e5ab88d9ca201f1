# SPDX-License-Identifier: Apache-2.0
"""With several backward passes per step, update rules count updates, and learning rate schedules count passes."""

import numpy as np
import pytest
from harness.keras_worlds import ALL, KERAS_2
from harness.worlds import on_all_ranks

START_S = 200  # seconds; the first test of a world imports its frameworks on all ranks at once
PASSES, UPDATES = 8, 3


def moved(optimizer, passes=1, **mode):
    """Return how far a weight has moved after each update. The loss is linear in it, so all gradients are 1."""
    from harness import keras_door as door

    keras = door.keras
    network = keras.Sequential(
        [keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")]
    )
    places = []

    class Spy(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if hasattr(self.model, "jax_state_sync"):
                self.model.jax_state_sync()
            places.append(1 - float(door.weights(self.model)[0].item()))

    if door.COMPILED:
        mode.setdefault("jit_compile", False)
    network.compile(loss=lambda y, y_pred: y_pred, optimizer=optimizer, **mode)
    ones = np.ones((UPDATES * passes, 1), "float32")
    network.fit(ones, ones, 1, shuffle=False, verbose=0, callbacks=[Spy()])
    assert int(np.asarray(optimizer.iterations)) % (UPDATES * passes) == 0
    return [*places[passes - 1 :: passes], 1 - float(door.weights(network)[0].item())]


def distributed(optimizer):
    from harness import keras_door as door

    return door.hvd.DistributedOptimizer(optimizer, backward_passes_per_step=PASSES, average_aggregated_gradients=True)


@pytest.mark.checked_numbers("Adam's first updates, each after 8 backward passes", against="a single process")
@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_bias_correction_counts_updates():
    from harness import keras_door as door

    optimizers = door.keras.optimizers
    for mode in (door.COMPILED, {"run_eagerly": True})[: 1 if door.BACKEND == "jax" else 2]:
        np.testing.assert_allclose(
            moved(distributed(optimizers.Adam(0.01)), PASSES, **mode)[:UPDATES], [0.01, 0.02, 0.03], rtol=1e-3
        )
    if door.BACKEND == "jax":
        return  # because each of these takes seconds to compile with JAX, and reads that counter too
    averages = {"use_ema": True, "ema_momentum": 0.5}  # averages replace the weights at the end of the training
    for name, options, mode in (("Nadam", {}, {"run_eagerly": True}), ("AdamW", averages, {})):
        make = getattr(optimizers, name)
        together = moved(distributed(make(0.01, **options)), PASSES, **mode)
        np.testing.assert_allclose(together, moved(make(0.01, **options), **mode), rtol=1e-3, err_msg=name)


@pytest.mark.checked_numbers("learning rates of a schedule over backward passes", against="the schedule")
@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_schedules_and_saved_counters_count_passes():
    from harness import keras_door as door

    keras = door.keras
    schedule = keras.optimizers.schedules.PolynomialDecay(0.01, 100, 0.02)  # the rate grows by 0.0001 with each pass
    optimizer = distributed(keras.optimizers.Adam(schedule))
    expected = np.cumsum([0.01 + 0.0001 * passes for passes in (7, 15, 23)])
    np.testing.assert_allclose(moved(optimizer, PASSES)[:UPDATES], expected, rtol=1e-3)

    # A checkpoint holds the number of passes, so the next update is that of one process after that many updates.
    alone, together = keras.optimizers.Adam(0.01), distributed(keras.optimizers.Adam(0.01))
    alone.iterations.assign(UPDATES)
    together.iterations.assign(UPDATES * PASSES)
    np.testing.assert_allclose(moved(together, PASSES), moved(alone), rtol=1e-3)


@pytest.mark.skipif(not KERAS_2, reason="Keras 3 has no legacy optimizers")
@pytest.mark.checked_numbers("updates of legacy optimizers after 8 backward passes", against="a single process")
@on_all_ranks(*KERAS_2, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_legacy_optimizers():
    from harness import keras_door as door

    keras = door.keras
    legacy = keras.optimizers.legacy
    for make, mode in ((legacy.Adam, {}), (legacy.Adamax, {}), (legacy.Nadam, {"run_eagerly": True})):
        together = moved(distributed(make(0.01)), PASSES, **mode)
        np.testing.assert_allclose(together, moved(make(0.01), **mode), rtol=1e-3, err_msg=make.__name__)
    schedule = keras.optimizers.schedules.PolynomialDecay(0.01, 100, 0.02)
    expected = np.cumsum([0.01 + 0.0001 * passes for passes in (7, 15, 23)])
    np.testing.assert_allclose(moved(distributed(legacy.Adam(schedule)), PASSES)[:UPDATES], expected, rtol=1e-3)


@pytest.mark.checked_numbers("sums of gradients that are None in some of several passes", against="the exact values")
@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_gradients_that_are_none_in_some_passes():
    """A sum is applied in its round, no matter which pass had the gradient. Without a gradient the variable stays."""
    from harness import keras_door as door

    sgd, mine = door.keras.optimizers.SGD, 2.0 * door.hvd.rank()  # the average over both ranks is 1
    optimizer = door.hvd.DistributedOptimizer(sgd(1.0, momentum=0.5), backward_passes_per_step=2)
    variables = [door.variable(np.zeros(2), name) for name in ("always", "sometimes")]

    def apply(*values):
        gradients = [None if value is None else door.gradient(np.full(2, value * mine)) for value in values]
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
        return [float(np.asarray(one)[0]) for one in variables]

    assert apply(1, 10) == [0, 0]
    assert apply(1, None) == [-2, -10]  # the gradient of the first pass is applied
    assert apply(1, None) == [-2, -10]
    # JAX traces both branches of a condition, so a variable that has had a gradient before gets zeros.
    assert apply(1, None) == [-5, -15 if door.BACKEND == "jax" else -10]
    assert apply(0, 1) == [-5, -15 if door.BACKEND == "jax" else -10]
    assert apply(0, 1) == [-6.5, -19.5 if door.BACKEND == "jax" else -17]
