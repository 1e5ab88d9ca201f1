# SPDX-License-Identifier: Apache-2.0
"""Every name and signature of Horovod's TensorFlow modules is there (data/tensorflow_api.json); more may follow."""

import importlib
import inspect
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():  # TensorFlow's own
    warnings.simplefilter("ignore")
    import horovod.tensorflow as hvd

CONTRACT = json.loads((Path(__file__).parent / "data" / "tensorflow_api.json").read_text(encoding="utf-8"))
NAMES = [(module, name) for module, names in CONTRACT.items() for name in names]


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[f"{module}.{name}" for module, name in NAMES])
def test_name(module: str, name: str) -> None:
    fact = CONTRACT[module][name]
    found = getattr(importlib.import_module(module), name)
    if "value" in fact:
        assert found == fact["value"]
    if "signature" in fact:
        check_signature(found, fact["signature"])
    for method, wanted in fact.get("methods", {}).items():
        check_signature(getattr(found, method), wanted)


def check_signature(function: Any, wanted: list[list[str]]) -> None:
    """`wanted`: [kind, name] or [kind, name, default], in order; what comes after must not be needed."""
    parameters = [each for each in inspect.signature(function).parameters.values() if each.name != "self"]
    for parameter, (kind, name, *default) in zip(parameters, wanted, strict=False):
        assert parameter.name == name
        assert parameter.kind.name == kind
        assert (parameter.default is not parameter.empty) == bool(default), name
        if default:
            assert shown(parameter.default) == default[0], name
    assert len(parameters) >= len(wanted), f"{wanted[len(parameters) :]} are missing"
    for parameter in parameters[len(wanted) :]:
        optional = parameter.default is not parameter.empty
        assert optional or parameter.kind.name.startswith("VAR"), f"{parameter} is needed, but no script gives it"


def shown(default: Any) -> str:
    """Defaults as the contract writes them."""
    named = {"NoneCompressor": "Compression.none", "ProcessSet": "global_process_set"}
    name = getattr(default, "__name__", None) or type(default).__name__
    return named.get(name, repr(default))


def test_all_names_are_exported() -> None:
    private = {name for name in CONTRACT["horovod.tensorflow"] if name.startswith("_")}
    assert set(hvd.__all__) >= set(CONTRACT["horovod.tensorflow"]) - private
    assert all(hasattr(hvd, name) for name in hvd.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = hvd.nonsense
