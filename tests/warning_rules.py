# SPDX-License-Identifier: Apache-2.0
"""Which warnings fail a test, in pytest's process and in every rank: those that somebody here can do something about.

Horovod's own always do. What a framework (or Python) says of code in our modules does on the versions that
constraints-test.txt names: there our code is to be mended. Others have their own opinions about the same code, and a
framework's own modules are its own affair. Warnings are attributed to the module that `stacklevel` points to, so that
most of what is deprecated, and all that is warned of in C++, counts as the caller's.
"""

from __future__ import annotations

import importlib.metadata
import re
import warnings
from pathlib import Path

_PINS = Path(__file__).parents[1] / "constraints-test.txt"
_FRAMEWORKS = ("jax", "jaxlib", "keras", "lightning", "mxnet", "numpy", "optax", "tensorflow", "tf-keras", "torch")
_OUR_MODULES = r"(horovod|tests[._]|test_|body_|harness|faultkit|launcherkit|testkit|__main__$)"
_OUR_CATEGORY = "horovod.common.exceptions.HorovodWarning"


def apply() -> None:
    """In a process of its own, before it imports anything else."""
    warnings.simplefilter("default")
    if frameworks_are_pinned():
        warnings.filterwarnings("error", category=ResourceWarning)
        warnings.filterwarnings("error", module=_OUR_MODULES)
    from horovod.common.exceptions import HorovodWarning

    warnings.filterwarnings("error", category=HorovodWarning)


def for_pytest() -> list[str]:
    """The same in the notation of pytest's `filterwarnings`, where the last one wins."""
    strict = ["error::ResourceWarning", f"error:::{_OUR_MODULES}"] if frameworks_are_pinned() else []
    return ["default", *strict, f"error::{_OUR_CATEGORY}", "error::pytest.PytestWarning"]


def frameworks_are_pinned() -> bool:
    """Whether all frameworks that are installed here have the version that our code is written for."""
    pins = dict(re.findall(r"^([\w-]+)==([^\s;]+)", _PINS.read_text(encoding="utf-8"), re.MULTILINE))
    return all(_installed(name) in (None, pins.get(name)) for name in _FRAMEWORKS)


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None
