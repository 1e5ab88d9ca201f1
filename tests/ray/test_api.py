# SPDX-License-Identifier: Apache-2.0
"""The names and signatures of Horovod's Ray modules (data/ray_api.json). Functions may have more parameters.

Names of horovod.runner that are only import paths, such as ElasticDriver, need only exist.
"""

import importlib

import pytest
from contract import check, contract_of

import horovod.ray
import horovod.ray.runner

CONTRACT = contract_of("ray")
NAMES = [(module, name) for module, names in CONTRACT.items() for name in names]


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[f"{module}.{name}" for module, name in NAMES])
def test_name(module: str, name: str) -> None:
    check(getattr(importlib.import_module(module), name), CONTRACT[module][name], f"{module}.{name}")


def test_all_names_are_exported() -> None:
    assert set(horovod.ray.__all__) >= set(CONTRACT["horovod.ray"])
    assert all(hasattr(horovod.ray, name) for name in horovod.ray.__all__)


def test_another_name_of_the_executor() -> None:
    assert horovod.ray.HorovodOnRayExecutor is horovod.ray.RayExecutor
    assert horovod.ray.runner.HorovodOnRayExecutor is horovod.ray.RayExecutor
