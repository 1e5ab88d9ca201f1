# SPDX-License-Identifier: Apache-2.0
"""All public names of Horovod's Keras modules exist with at least the parameters in data/keras_api.json."""

import importlib
import os
from importlib.util import find_spec

import pytest
from contract import check, contract_of
from testkit.launcher import python
from testkit.processes import run

CONTRACT = contract_of("keras")
# Names that refer to TensorFlow with every backend. Tests of these names need TensorFlow as the backend.
ONLY_ON_TENSORFLOW = {"TensorFlowKerasState"}


def _is_installed(name: str) -> bool:
    spec = find_spec(name)
    return spec is not None and spec.origin is not None  # a folder without __init__.py is not a package


BACKENDS = [name for name in ("jax", "torch", "tensorflow") if _is_installed(name)]


@pytest.mark.filterwarnings("ignore")  # warnings of the frameworks
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


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "tensorflow"])
@pytest.mark.timeout(120)
def test_only_the_backend_is_imported(backend: str) -> None:
    """With the PyTorch or JAX backend, TensorFlow need not be installed, and importing it would be slow."""
    program = (
        "import sys, keras; before = set(sys.modules); import horovod.keras as hvd; added = set(sys.modules) - before;"
        f"assert not added & ({{'torch', 'jax', 'tensorflow'}} - {{'{backend}'}}), added;"
        "assert 'tensorflow' not in sys.modules; assert set(hvd.__all__) <= set(dir(hvd))"
    )
    done = run(python(program), {"KERAS_BACKEND": backend}, limit_s=110)
    assert done.returncode == 0, done.stderr
