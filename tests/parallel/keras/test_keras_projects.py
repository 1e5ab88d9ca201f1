# SPDX-License-Identifier: Apache-2.0
"""Use of horovod.tensorflow.keras by a public project: its calls in their order, in code written for this test.

docs/projects.md names the project, the file that was read and its commit.
"""

import importlib

import numpy as np
import pytest
from harness.keras_worlds import ON_TENSORFLOW
from harness.worlds import on_all_ranks

START_S = 200  # seconds; the first test of a world imports its frameworks on all ranks at once


@on_all_ranks(*ON_TENSORFLOW, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_interface_that_wraps_compile_fit_and_evaluate():
    """mlrun/mlrun: imports the module by name, scales the rate in place, puts three callbacks before the user's."""
    from harness import keras_door as door

    hvd = importlib.import_module("horovod.tensorflow.keras")
    hvd.init()
    network = door.model(seed=3 + 10 * hvd.rank())
    optimizer = door.keras.optimizers.Adam(0.01)
    rate = "lr" if hasattr(optimizer, "lr") else "learning_rate"
    setattr(optimizer, rate, getattr(optimizer, rate) * hvd.size())
    np.testing.assert_allclose(np.asarray(getattr(optimizer, rate)), 0.02, rtol=1e-6)
    old = {} if door.IS_KERAS3 else {"experimental_run_tf_function": False}  # Keras 3 does not accept this argument
    network.compile(optimizer=hvd.DistributedOptimizer(optimizer), loss="mse", metrics=["mae"], **old)

    average = hvd.callbacks.MetricAverageCallback()
    average._supports_tf_logs = True
    warmup = hvd.callbacks.LearningRateWarmupCallback(initial_lr=float(np.asarray(getattr(network.optimizer, rate))))
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), average, warmup]
    if hvd.rank() == 0:
        callbacks.append(door.keras.callbacks.History())
    x, y = (door.share(one) for one in door.data())
    steps = 8 // hvd.size()
    history = network.fit(
        x, y, batch_size=len(x) // steps, steps_per_epoch=steps, epochs=2, callbacks=callbacks, verbose=0
    )
    door.same_everywhere(door.weights(network))
    averaged = network.evaluate(x, y, steps=steps, callbacks=[average], verbose=0)
    assert len(averaged) == 2
    return [round(float(value), 6) for value in history.history["loss"]]
