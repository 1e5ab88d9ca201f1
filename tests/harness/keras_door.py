# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of the Keras APIs: the Keras of this world, its Horovod API, and small deterministic models."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import numpy as np

from horovod._keras.doors import backend_name, is_keras3
from horovod.common.exceptions import HorovodMismatchError

LEGACY = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
    sys.modules["tensorflow"] = None  # no test may use TensorFlow here, but Keras would import it to save a model

with warnings.catch_warnings():  # warnings of the frameworks themselves
    warnings.simplefilter("ignore")
    if LEGACY:
        from tensorflow import keras

        import horovod.tensorflow.keras as hvd
    else:
        import horovod.keras as hvd

        import keras  # isort: skip

IS_KERAS3 = is_keras3(keras)
BACKEND: str = backend_name(keras)
# Keras 3 on TensorFlow compiles with XLA by default. That takes long, so only tests that request it do so.
_COMPILES_SLOWLY = IS_KERAS3 and BACKEND == "tensorflow"
COMPILED: dict[str, Any] = {"jit_compile": True} if _COMPILES_SLOWLY else {}
ROWS, BATCH = 32, 8
# Exception for tensors that differ between ranks; TensorFlow raises one of its own errors.
MISMATCH: type[Exception] = HorovodMismatchError
if BACKEND == "tensorflow":
    import tensorflow

    MISMATCH = tensorflow.errors.FailedPreconditionError


def data(rows: int = ROWS) -> tuple[Any, Any]:
    random = np.random.default_rng(7)
    return random.normal(size=(rows, 4)).astype("float32"), random.normal(size=(rows, 1)).astype("float32")


def share(array: Any, batch: int = BATCH) -> Any:
    """Return this rank's part of each batch."""
    mine = batch // hvd.size()
    batches = array.reshape(-1, batch, *array.shape[1:])
    return batches[:, hvd.rank() * mine : (hvd.rank() + 1) * mine].reshape(-1, *array.shape[1:])


def variable(value: Any, name: str = "kernel") -> Any:
    """Return a float32 variable of this Keras."""
    if IS_KERAS3:
        return keras.Variable(np.asarray(value, "float32"), name=name)
    return tensorflow.Variable(np.asarray(value, "float32"), name=name)


def gradient(value: Any) -> Any:
    """Return a value as a float32 tensor of this Keras' backend."""
    if BACKEND == "tensorflow":
        return tensorflow.constant(value, tensorflow.float32)
    return keras.ops.convert_to_tensor(np.asarray(value, "float32"))


def model(seed: int = 3, **options: Any) -> Any:
    def dense(units: int, number: int, **more: Any) -> Any:
        start = keras.initializers.RandomNormal(stddev=0.5, seed=seed + number)
        return keras.layers.Dense(units, kernel_initializer=start, **options, **more)

    return keras.Sequential([keras.layers.Input((4,)), dense(6, 0, activation="tanh"), dense(1, 1)])


def fit(network: Any, optimizer: Any, x: Any, y: Any, batch: int, epochs: int = 1, **options: Any) -> Any:
    callbacks = options.pop("callbacks", None)
    if _COMPILES_SLOWLY:
        options.setdefault("jit_compile", False)
    network.compile(loss=keras.losses.MeanSquaredError(), optimizer=optimizer, **options)
    return network.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)


def trained_alone(optimizer: Any, **options: Any) -> list[Any]:
    """Return the weights after one process has trained on all data."""
    network = model()
    fit(network, optimizer, *data(), BATCH, **options)
    return weights(network)


def trained_together(optimizer: Any, passes: int = 1, **options: Any) -> list[Any]:
    """Return the weights after each rank has trained on its part of every batch."""
    network = model()
    x, y = data()
    fit(network, optimizer, share(x), share(y), BATCH // hvd.size() // passes, **options)
    return weights(network)


def weights(network: Any) -> list[Any]:
    return [np.asarray(one) for one in network.get_weights()]


def check_same(actual: list[Any], expected: list[Any], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


def same_everywhere(values: list[Any]) -> None:
    """Check that the values equal those of rank 0 bit by bit."""
    digests = hvd.allgather_object([np.asarray(one).tobytes() for one in values], "digests")
    assert all(digest == digests[0] for digest in digests)
