# SPDX-License-Identifier: Apache-2.0
"""One world for each Keras there is here: the backend is chosen when a process first imports Keras."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os

from harness.worlds import DYNAMIC, World

_BACKENDS = os.environ.get("HOROVOD_TEST_KERAS_BACKENDS", "jax,torch,tensorflow").split(",")  # CI lacks time for all
# One thread for each rank: more would only be in each other's way.
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "CUDA_VISIBLE_DEVICES": "",
}


def _world(name: str, ranks: int, **environment: str) -> World:
    return World(name, f"a:{ranks}", DYNAMIC | _ONE_THREAD | environment)


def _is_there(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None  # a folder of that name is no package


def _worlds() -> list[World]:
    if not _is_there("keras"):
        return []
    if importlib.metadata.version("keras").startswith("2."):
        return [_world("keras2", 2)]
    worlds = [_world(backend, 2, KERAS_BACKEND=backend) for backend in _BACKENDS if _is_there(backend)]
    if _is_there("tf_keras"):
        worlds.append(_world("tf_keras", 2, TF_USE_LEGACY_KERAS="1"))
    return worlds


ALL = _worlds()
KERAS_3 = [world for world in ALL if "KERAS_BACKEND" in world.env]
KERAS_2 = [world for world in ALL if world not in KERAS_3]
ON_TENSORFLOW = [world for world in ALL if world.env.get("KERAS_BACKEND", "tensorflow") == "tensorflow"]
FOUR = [_world("jax4", 4, KERAS_BACKEND="jax")] if any(world.name == "jax" for world in ALL) else []
