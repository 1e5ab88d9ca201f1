# SPDX-License-Identifier: Apache-2.0
"""Program of each rank of test_keras_cuda.py: Keras, on torch or on JAX, on the one GPU that ranks share."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import keras_door as door

hvd, keras = door.hvd, door.keras
hvd.init()


def device_of(variable: Any) -> str:
    value = variable.value
    return value.device.type if keras.backend.backend() == "torch" else next(iter(value.devices())).platform


def check_training() -> None:
    """Check that ranks with a share of each batch reach the weights of one process with the whole batch."""
    adam = keras.optimizers.Adam
    alone = door.trained_alone(adam(0.05))
    for mode in ({}, {"run_eagerly": True}):
        together = door.trained_together(hvd.DistributedOptimizer(adam(0.05)), **mode)
        door.check_same(together, alone, rtol=1e-4, atol=1e-5)
        door.same_everywhere(together)


def check_callbacks() -> None:
    """Check that ranks that begin with different weights have equal ones after training, and equal metrics."""
    network = door.model(seed=100 * hvd.rank())
    wheres = {device_of(variable) for variable in network.weights}
    assert wheres <= {"cuda", "gpu"}, wheres
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9))
    x, y = door.data()
    history = door.fit(network, optimizer, door.share(x), door.share(y), 4, epochs=2, callbacks=callbacks)
    door.same_everywhere(door.weights(network))
    door.same_everywhere([history.history["loss"]])


check_training()
check_callbacks()
print("all checks passed", flush=True)
hvd.shutdown()
