# SPDX-License-Identifier: Apache-2.0
"""All public names of Horovod's torch modules exist with at least the parameters in data/torch_api.json."""

import importlib

import pytest
from contract import check, contract_of

CONTRACT = contract_of("torch")
NAMES = [(module, name) for module, names in CONTRACT.items() for name in names]


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[f"{module}.{name}" for module, name in NAMES])
def test_name(module: str, name: str) -> None:
    check(getattr(importlib.import_module(module), name), CONTRACT[module][name], f"{module}.{name}")


def test_all_names_are_exported() -> None:
    import horovod.torch as hvd

    assert set(hvd.__all__) >= set(CONTRACT["horovod.torch"]) - {"check_extension"}
    assert all(hasattr(hvd, name) for name in hvd.__all__)
