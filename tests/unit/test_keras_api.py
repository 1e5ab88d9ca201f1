# SPDX-License-Identifier: Apache-2.0
"""Every name and signature of Horovod's Keras modules is there (data/keras_api.json); more parameters may follow."""

import importlib
import inspect
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

CONTRACT = json.loads((Path(__file__).parent / "data" / "keras_api.json").read_text(encoding="utf-8"))
# What refers to TensorFlow even where Keras runs on something else: the same name in another door.
ONLY_ON_TENSORFLOW = {"TensorFlowKerasState"}


def _is_installed(name: str) -> bool:
    spec = find_spec(name)
    return spec is not None and spec.origin is not None  # a folder of that name is no package


BACKENDS = [name for name in ("jax", "torch", "tensorflow") if _is_installed(name)]


@pytest.mark.filterwarnings("ignore")  # of the frameworks
@pytest.mark.timeout(120)
def test_names_and_signatures() -> None:
    if find_spec("tensorflow") is None:
        names = [module for module in CONTRACT if not module.startswith("horovod.tensorflow")]
    else:
        names = list(CONTRACT)
    for module in names:
        for name, fact in CONTRACT[module].items():
            if name in ONLY_ON_TENSORFLOW and os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
                continue
            check(getattr(importlib.import_module(module), name), fact, f"{module}.{name}")


def check(found: Any, fact: dict[str, Any], where: str) -> None:
    if "value" in fact:
        assert found == fact["value"], where
    if "signature" in fact:
        check_signature(found, fact["signature"], where)
    for method, wanted in fact.get("methods", {}).items():
        check_signature(getattr(found, method), wanted, f"{where}.{method}")
    if "bases" in fact:
        bases = {base.__name__ for base in found.__mro__}
        assert bases >= set(fact["bases"]), where


def check_signature(function: Any, wanted: list[list[str]], where: str) -> None:
    """`wanted`: [kind, name] or [kind, name, default], in order; what comes after must not be needed."""
    parameters = [each for each in inspect.signature(function).parameters.values() if each.name != "self"]
    for parameter, (kind, name, *default) in zip(parameters, wanted, strict=False):
        if parameter.kind.name == kind == "VAR_POSITIONAL":
            continue
        assert (parameter.name, parameter.kind.name) == (name, kind), where
        assert (parameter.default is not parameter.empty) == bool(default), f"{where}: {name}"
        if default:
            assert shown(parameter.default) == default[0], f"{where}: {name}"
    assert len(parameters) >= len(wanted), f"{where}: {wanted[len(parameters) :]} are missing"
    for parameter in parameters[len(wanted) :]:
        optional = parameter.default is not parameter.empty
        assert optional or parameter.kind.name.startswith("VAR"), f"{where}: {parameter} is needed, but nobody gives it"


def shown(default: Any) -> str:
    """Defaults as the contract writes them."""
    named = {"NoneCompressor": "Compression.none", "ProcessSet": "global_process_set"}
    name = getattr(default, "__name__", None) or type(default).__name__
    return named.get(name, repr(default))


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "tensorflow"])
@pytest.mark.timeout(120)
def test_only_the_backend_is_imported(backend: str) -> None:
    """A program on PyTorch or JAX does not wait for TensorFlow, and needs none."""
    program = (
        "import sys, keras; before = set(sys.modules); import horovod.keras as hvd; added = set(sys.modules) - before;"
        f"assert not added & ({{'torch', 'jax', 'tensorflow'}} - {{'{backend}'}}), added;"
        "assert 'tensorflow' not in sys.modules; assert set(hvd.__all__) <= set(dir(hvd))"
    )
    environment = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
