# SPDX-License-Identifier: Apache-2.0
"""Saved models do not depend on Horovod: Keras alone loads them, and hvd.load_model continues their training."""

import os
import tempfile

import numpy as np
import pytest
from harness.keras_worlds import ALL
from harness.worlds import on_all_ranks

START_S = 200  # seconds; the first test of a world imports its frameworks on all ranks at once


@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_saved_and_loaded():
    from harness import keras_door as door

    hvd, keras = door.hvd, door.keras
    x, y = door.data()
    mine = door.share(x), door.share(y)
    batch = door.BATCH // hvd.size()
    network = door.model()
    door.fit(network, hvd.DistributedOptimizer(keras.optimizers.Adam(0.05)), *mine, batch)
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, name) for name in ("m.keras", "m.h5", *([] if door.IS_KERAS3 else ["m"]))]
        for file in files:
            network.save(file)
        saved = door.weights(network)
        network.fit(*mine, batch, shuffle=False, verbose=0)
        for file in files:
            plain = keras.models.load_model(file)
            assert not hasattr(plain.optimizer, "register_local_var")
            assert type(plain.optimizer).__name__ == "Adam"
            loaded = hvd.load_model(file)
            door.check_same(door.weights(loaded), saved)
            assert hasattr(loaded.optimizer, "register_local_var")
            if not _has_state(file, door.IS_KERAS3):
                continue
            assert int(np.asarray(loaded.optimizer.iterations)) == door.ROWS // door.BATCH
            loaded.fit(*mine, batch, shuffle=False, verbose=0)
            door.check_same(door.weights(loaded), door.weights(network))
            loaded.save(os.path.join(folder, "again.keras"))
            again = keras.models.load_model(os.path.join(folder, "again.keras"))
            assert int(np.asarray(again.optimizer.iterations)) == 2 * door.ROWS // door.BATCH


def _has_state(file, is_keras3):
    """Return True if loading restores optimizer state: Keras 3 not from .h5 files, Keras 2 not from folders."""
    return file.endswith(".keras") or (file.endswith(".h5") and not is_keras3)


@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_optimizers_of_users_and_several_passes():
    from harness import keras_door as door

    hvd, keras = door.hvd, door.keras

    class Descent(keras.optimizers.SGD):
        pass

    x, y = door.data(8)
    mine = door.share(x), door.share(y)
    network = door.model()
    optimizer = hvd.DistributedOptimizer(Descent(0.05, momentum=0.9), backward_passes_per_step=2)
    door.fit(network, optimizer, *mine, 1)
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "m.keras")
        network.save(file)
        loaded = hvd.load_model(file, custom_optimizers=[Descent])
    assert type(loaded.optimizer).__name__ == "Descent"
    assert int(np.asarray(loaded.optimizer.iterations)) == int(np.asarray(optimizer.iterations))
    velocities = [np.asarray(one) for one in loaded.optimizer.momentums]
    door.check_same(velocities, [np.asarray(one) for one in optimizer.momentums])
    assert any(abs(one).max() > 0 for one in velocities)
