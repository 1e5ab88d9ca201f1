# SPDX-License-Identifier: Apache-2.0
"""Rules for the warnings that fail a test, in pytest's process and in every rank: those that this project can fix.

Warnings of Horovod itself always fail a test. Warnings of a framework or of Python about our modules fail it only with
the versions in constraints-test.txt, for which the code is written. Other versions may warn about this code, and
warnings about a framework's own modules are not ours to fix. A warning belongs to the module that `stacklevel` points
to, so most deprecations and all warnings from C++ code count as the caller's.
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
    """Set the warning filters of this process. Call it before the process imports anything else."""
    warnings.simplefilter("default")
    if frameworks_are_pinned():
        warnings.filterwarnings("error", category=ResourceWarning)
        warnings.filterwarnings("error", module=_OUR_MODULES)
    from horovod.common.exceptions import HorovodWarning

    warnings.filterwarnings("error", category=HorovodWarning)


def for_pytest() -> list[str]:
    """Return these rules in the notation of pytest's `filterwarnings`, where the last matching rule wins."""
    strict = ["error::ResourceWarning", f"error:::{_OUR_MODULES}"] if frameworks_are_pinned() else []
    return ["default", *strict, f"error::{_OUR_CATEGORY}", "error::pytest.PytestWarning"]


def frameworks_are_pinned() -> bool:
    """Return True if all installed frameworks have the version in constraints-test.txt."""
    pins = dict(re.findall(r"^([\w-]+)==([^\s;]+)", _PINS.read_text(encoding="utf-8"), re.MULTILINE))
    return all(_installed(name) in (None, pins.get(name)) for name in _FRAMEWORKS)


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None
