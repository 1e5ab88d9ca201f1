# SPDX-License-Identifier: Apache-2.0
"""Every name and signature of Horovod's MXNet modules exists (data/mxnet_api.json); more parameters may follow."""

import importlib
import inspect
import json
from pathlib import Path

import pytest
from harness.mxnet_arrays import mx

CONTRACT = json.loads((Path(__file__).parent / "data" / "mxnet_api.json").read_text(encoding="utf-8"))
NAMES = [(module, name) for module, names in CONTRACT.items() for name in names]


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[f"{module}.{name}" for module, name in NAMES])
def test_name(module, name):
    wanted = CONTRACT[module][name]
    found = getattr(importlib.import_module(module), name)
    if isinstance(wanted, int):
        assert found == wanted
    elif isinstance(wanted, dict):
        for method, signature in wanted.items():
            check_signature(getattr(found, method), signature)
    elif wanted:
        check_signature(found, wanted)


def check_signature(function, wanted):
    given = [each for each in inspect.signature(function).parameters.values() if each.name != "self"]
    wanted = [each for each in wanted.strip("()").split(", ") if each]
    assert [shown(each) for each in given[: len(wanted)]] == wanted
    assert all(each.default is not each.empty for each in given[len(wanted) :])


def shown(parameter):
    """Return a parameter as the contract writes it."""
    names = {"NoneCompressor": "Compression.none", "ProcessSet": "global_process_set"}
    if parameter.default is parameter.empty:
        return f"*{parameter.name}" if parameter.kind is parameter.VAR_POSITIONAL else parameter.name
    default = parameter.default
    name = getattr(default, "__name__", type(default).__name__)
    is_op = parameter.name == "op" and default == 0
    return f"{parameter.name}={'Average' if is_op else names.get(name, repr(default))}"


def test_all_names_are_exported():
    import horovod.mxnet as hvd

    assert set(hvd.__all__) >= set(CONTRACT["horovod.mxnet"])
    assert all(hasattr(hvd, name) for name in hvd.__all__)
    assert issubclass(hvd.DistributedOptimizer, mx.optimizer.Optimizer)
    assert issubclass(hvd.DistributedTrainer, mx.gluon.Trainer)
