# SPDX-License-Identifier: Apache-2.0
"""Packages that each framework's API needs, and the error for a missing one."""

from __future__ import annotations

import importlib.util
import sys

# For each API, by its name after "horovod.": the framework, its package, and the khorovod extra that installs it.
_NEEDS = {
    "torch": ("PyTorch", "torch", "torch"),
    "tensorflow": ("TensorFlow", "tensorflow", "tensorflow"),
    "tensorflow.keras": ("TensorFlow", "tensorflow", "tensorflow"),
    "keras": ("Keras", "keras", "keras"),
    "jax": ("JAX", "jax", "jax"),
    "mxnet": ("MXNet", "mxnet", "mxnet"),
    "ray": ("Ray", "ray", "ray"),
}


def require(module: str) -> None:
    """Raise ModuleNotFoundError with a remedy if the framework is missing.

    Args:
        module: Name of an API, or of a part of one, with or without "horovod.".
    """
    api = module.removeprefix("horovod.")
    known = next((name for name in sorted(_NEEDS, key=len, reverse=True) if f"{api}.".startswith(f"{name}.")), None)
    framework, package, extra = _NEEDS[known] if known is not None else (api, api, "")
    if is_installed(package):
        return
    what = f"'khorovod[{extra}]'" if extra else package
    raise ModuleNotFoundError(f"horovod.{known or api} needs {framework}: pip install {what}", name=package)


def is_installed(package: str) -> bool:
    if package in sys.modules:  # None in sys.modules means that the program forbids the import
        return sys.modules[package] is not None
    found = importlib.util.find_spec(package)
    # Check the origin too, because a folder without __init__.py is found but has no origin.
    return found is not None and found.origin is not None
