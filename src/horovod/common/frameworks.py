# SPDX-License-Identifier: Apache-2.0
"""What each framework's API needs to be installed, and what to say if it is not."""

from __future__ import annotations

import importlib.util
import sys

# By the API's name after "horovod.": the framework, its package, and our extra that installs it.
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
    """ModuleNotFoundError with what to install if the framework of `module`, an API or a part of one, is missing."""
    api = module.removeprefix("horovod.")
    known = next((name for name in sorted(_NEEDS, key=len, reverse=True) if f"{api}.".startswith(f"{name}.")), None)
    framework, package, extra = _NEEDS[known] if known is not None else (api, api, "")
    if is_installed(package):
        return
    what = f"'khorovod[{extra}]'" if extra else package
    raise ModuleNotFoundError(f"horovod.{known or api} needs {framework}: pip install {what}", name=package)


def is_installed(package: str) -> bool:
    if package in sys.modules:  # as it is; None: somebody forbids it
        return sys.modules[package] is not None
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None  # a folder of that name is not a package
