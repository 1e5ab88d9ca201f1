# SPDX-License-Identifier: Apache-2.0
"""All public names of Horovod's TensorFlow modules exist with at least the parameters in data/tensorflow_api.json."""

import importlib
import warnings

import pytest
from contract import check, contract_of

with warnings.catch_warnings():  # TensorFlow's own warnings
    warnings.simplefilter("ignore")
    import horovod.tensorflow as hvd

CONTRACT = contract_of("tensorflow")
NAMES = [(module, name) for module, names in CONTRACT.items() for name in names]


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[f"{module}.{name}" for module, name in NAMES])
def test_name(module: str, name: str) -> None:
    check(getattr(importlib.import_module(module), name), CONTRACT[module][name], f"{module}.{name}")


def test_all_names_are_exported() -> None:
    private = {name for name in CONTRACT["horovod.tensorflow"] if name.startswith("_")}
    assert set(hvd.__all__) >= set(CONTRACT["horovod.tensorflow"]) - private
    assert all(hasattr(hvd, name) for name in hvd.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = hvd.nonsense


def test_names_that_old_programs_import() -> None:
    from horovod.tensorflow import _executing_eagerly, util

    assert _executing_eagerly is util._executing_eagerly
    assert _executing_eagerly() is True
    with hvd.elastic.tf.Graph().as_default():
        assert _executing_eagerly() is False
    assert hvd.callbacks.MetricAverageCallback.__module__ == "horovod.tensorflow.keras.callbacks"
