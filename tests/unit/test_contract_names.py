# SPDX-License-Identifier: Apache-2.0
"""Every module of Horovod's public API can be imported, and every name in it exists (data/names_api.json).

A name that this version does not support raises an error that contains the name, when it is used. A module that needs a
framework raises an error that names the framework.
"""

import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from horovod.common import door, frameworks, not_yet
from horovod.common.not_yet import NotYet, function, value

CONTRACT: dict[str, dict[str, str]] = json.loads(
    (Path(__file__).parent / "data" / "names_api.json").read_text(encoding="utf-8")
)
NEEDS = re.compile(r"horovod\.(\S+) needs (PyTorch|TensorFlow|Keras|JAX|MXNet|Ray): pip install 'khorovod\[(\w+)\]'")
MISSING = object()
MESSAGES = {
    "horovod.torch": "horovod.torch needs PyTorch: pip install 'khorovod[torch]'",
    "horovod.tensorflow": "horovod.tensorflow needs TensorFlow: pip install 'khorovod[tensorflow]'",
    "horovod.tensorflow.keras": "horovod.tensorflow needs TensorFlow: pip install 'khorovod[tensorflow]'",
    "horovod.keras": "horovod.keras needs Keras: pip install 'khorovod[keras]'",
    "horovod.jax": "horovod.jax needs JAX: pip install 'khorovod[jax]'",
    "horovod.mxnet": "horovod.mxnet needs MXNet: pip install 'khorovod[mxnet]'",
    "horovod.ray": "horovod.ray needs Ray: pip install 'khorovod[ray]'",
}


@pytest.fixture(autouse=True)
def _without_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make mpi4py look uninstalled, because importing it would initialise MPI in the test process."""
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.delitem(sys.modules, "horovod.common.mpi", raising=False)


def without_framework(error: ModuleNotFoundError) -> bool:
    """Return True if the error names a framework as not installed, in the required wording, and it really is not."""
    return bool(NEEDS.fullmatch(str(error))) and error.name is not None and not frameworks.is_installed(error.name)


def looked_up(module: ModuleType, name: str) -> Any:
    try:
        return getattr(module, name, MISSING)
    except ModuleNotFoundError as error:
        if not without_framework(error):
            raise
        return None


def is_of_kind(found: Any, kind: str) -> bool:
    if kind == "class":
        return isinstance(found, type | ModuleType)  # mpi4py's MPI is a module
    return {"function": callable, "module": inspect.ismodule, "value": lambda _: True}[kind](found)


@pytest.mark.parametrize("module", CONTRACT)
def test_module(module: str) -> None:
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not without_framework(error):
            raise
        return
    for name, kind in CONTRACT[module].items():
        there = looked_up(found, name)
        assert there is not MISSING, f"{module}.{name} is missing"
        assert there is None or is_of_kind(there, kind), f"{module}.{name} is not a {kind}: {there!r}"


def test_what_is_not_there_says_its_name_when_it_is_used() -> None:
    told = 0
    for module in CONTRACT:
        if not module.startswith(("horovod.spark", "horovod.runner")):
            continue
        found = importlib.import_module(module)
        for name in CONTRACT[module]:
            part = looked_up(found, name)
            of_ours = getattr(part, "__module__", None) == module
            missing = of_ours and (
                (isinstance(part, type) and issubclass(part, NotYet))
                or getattr(getattr(part, "__code__", None), "co_name", "") == "raises"
            )
            if of_ours and not missing and module.startswith("horovod.spark"):
                assert isinstance(part, type), f"{module}.{name} pretends to work"
                assert issubclass(part, Exception), f"{module}.{name} pretends to work"
            if missing:
                told += 1
                with pytest.raises(NotImplementedError, match=rf"^{module}\.{name} is not available in this version: "):
                    part(1, key=2)
    assert told > 100


@pytest.mark.parametrize("api", ["numpy", "torch", "tensorflow", "jax", "mxnet"])
def test_all_apis_share_one_object_for_the_basic_questions(api: str) -> None:
    try:
        found = importlib.import_module(f"horovod.{api}.mpi_ops")
    except ModuleNotFoundError as error:
        if not without_framework(error):
            raise
        return
    assert found._basics is door._basics


def test_spark_says_what_is_not_there() -> None:
    from horovod.spark import run
    from horovod.spark.common.store import Store

    with pytest.raises(NotImplementedError, match="^horovod.spark.runner.run is not .*: Spark is not supported yet"):
        run(print, num_proc=2)

    class Mine(Store):  # type: ignore[misc,unused-ignore]
        pass

    with pytest.raises(NotImplementedError, match="^horovod.spark.common.store.Store is not available"):
        Mine("/tmp")
    assert not isinstance(7, Store)
    assert not hasattr(Store, "create")


def test_a_missing_constant_says_so_at_any_use() -> None:
    missing = value("horovod.spark.x", "Y")
    assert repr(missing) == "<horovod.spark.x.Y is not available in this version: Spark is not supported yet>"
    for use in (bool, str, int, len, iter, lambda it: it == 1, lambda it: it + 1, lambda it: it(), lambda it: it.part):
        with pytest.raises(NotImplementedError, match="^horovod.spark.x.Y is not available"):
            use(missing)
    assert not_yet.text_for("horovod.other.x") == "horovod.other.x is not available in this version"
    assert function("horovod.spark", "run").__name__ == "run"


def test_every_api_says_what_to_install() -> None:
    """Check the messages in a separate process where no framework can be imported."""
    program = """
import importlib, sys
for name in ("torch", "tensorflow", "keras", "jax", "mxnet", "ray"):
    sys.modules[name] = None
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
    except ImportError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, *MESSAGES], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == list(MESSAGES.values())


def test_the_old_question_about_an_extension_has_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    from horovod.common.util import check_extension, extension_available

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=re.escape(MESSAGES["horovod.torch"])):
        check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__)
    assert not extension_available("torch")
    frameworks.require("horovod.numpy")
