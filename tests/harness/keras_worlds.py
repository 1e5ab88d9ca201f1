# SPDX-License-Identifier: Apache-2.0
"""One world for each installed Keras backend, because a process selects the backend at its first import of Keras."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os

from testkit.preloaded import ANEW

from harness.worlds import DYNAMIC, WORLDS, World

# CI lacks time to run all backends everywhere.
_BACKENDS = os.environ.get("HOROVOD_TEST_KERAS_BACKENDS", "jax,torch,tensorflow").split(",")
# Use one thread for each rank, because more threads would compete for the cores.
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "CUDA_VISIBLE_DEVICES": "",
}


def _world(name: str, ranks: int, **environment: str) -> World:
    # Variables that choose a backend are read during the import, and a backend must not need what another one imports.
    return World(name, f"a:{ranks}", DYNAMIC | _ONE_THREAD | ANEW | environment)


def _is_there(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None  # a folder of that name is not a package


def _worlds() -> list[World]:
    if not _is_there("keras"):
        return []
    if _IS_KERAS_2:
        return [_TENSORFLOW]
    worlds = [
        _TENSORFLOW if backend == "tensorflow" else _world(backend, 2, KERAS_BACKEND=backend)
        for backend in _BACKENDS
        if _is_there(backend)
    ]
    if _is_there("tf_keras"):
        worlds.append(_world("tf_keras", 2, TF_USE_LEGACY_KERAS="1"))
    return worlds


# TensorFlow's Keras uses the world of the tests of the TensorFlow API, whose ranks have already imported it.
_TENSORFLOW = WORLDS["shm2"]
_IS_KERAS_2 = _is_there("keras") and importlib.metadata.version("keras").startswith("2.")
ALL = _worlds()
KERAS_2 = [world for world in ALL if _IS_KERAS_2 or world.name == "tf_keras"]
KERAS_3 = [world for world in ALL if world not in KERAS_2]
ON_TENSORFLOW = [world for world in ALL if world.env.get("KERAS_BACKEND", "tensorflow") == "tensorflow"]
ON_TORCH = [world for world in ALL if world.env.get("KERAS_BACKEND") == "torch"]
