# SPDX-License-Identifier: Apache-2.0
"""Package section of `hvd doctor`. Versions come from package metadata, so that no large package is imported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from pathlib import Path

from horovod.common import mpi_library, not_yet
from horovod.common.settings import value_of
from horovod.machine.findings import Finding

# Display name, distributions that provide it, and the module of its API here (empty if it has none).
_FRAMEWORKS = (
    ("PyTorch", ("torch",), "horovod.torch"),
    ("TensorFlow", ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly"), "horovod.tensorflow"),
    ("Keras", ("keras", "keras-nightly"), "horovod.keras"),
    ("JAX", ("jax",), "horovod.jax"),
    ("MXNet", ("mxnet", "mxnet-cu112"), "horovod.mxnet"),
    ("Ray", ("ray",), "horovod.ray"),
    ("Spark", ("pyspark",), "horovod.spark"),
    ("mpi4py", ("mpi4py",), ""),
)


def versions() -> list[Finding]:
    import horovod

    findings = [
        Finding("khorovod", f"{horovod.__version__} in {horovod.__path__[0]}"),
        Finding("Python", f"{platform.python_version()} ({platform.python_implementation()})"),
        Finding("NumPy", version_of(("numpy",)) or "not installed"),
    ]
    return findings + original_horovod()


def frameworks() -> list[Finding]:
    findings, missing = [], []
    for name, distributions, door in _FRAMEWORKS:
        version = version_of(distributions)
        if version is None:
            missing.append(name)
        else:
            advice = _advice(name, version)
            way = f" through {_DIRECT[name][1]}" if name in _DIRECT and not advice else ""
            findings.append(Finding(name, version + _door_text(door) + way, advice))
    return [*findings, Finding("not installed", ", ".join(missing))] if missing else findings


def mpi() -> Finding:
    """Return the MPI library that could transfer tensors, found without initialising it."""
    version = version_of(("mpi4py",))
    if version is None:
        return Finding("mpi4py", "not installed: tensors travel by shared memory and TCP")
    library, why_not = mpi_library.look()
    if not library:
        return Finding("mpi4py", f"{version}, but {why_not}", "let mpi4py find the library of your mpirun")
    return Finding("mpi4py", f"{version} with {library}: tensors travel by it after horovodrun --mpi")


# For frameworks whose programs can call the engine without Python: oldest version, required library, setting that
# disables it, and the consequence.
_DIRECT = {
    "JAX": ((0, 4, 38), "libhvd_xla.so", "HOROVOD_JAX_FFI", "programs reach the engine through Python, slowly"),
    "TensorFlow": (
        (2, 13),
        "libhvd_tensorflow.so",
        "HOROVOD_TENSORFLOW_NATIVE",
        "collectives go through Python, one after the other and slowly",
    ),
}


def _advice(name: str, version: str) -> str:
    """Return why a framework must call the engine through Python, or an empty string. Does not import the framework."""
    if name not in _DIRECT:
        return ""
    import horovod

    oldest, library, setting, otherwise = _DIRECT[name]
    number = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    if number < oldest:
        return f"{otherwise}: pip install -U {name.lower()} ({'.'.join(map(str, oldest))} or newer)"
    if not any(Path(folder, library).exists() for folder in horovod.__path__):
        return f"{library} is missing, so {otherwise}: reinstall khorovod"
    try:
        off = value_of(setting, os.environ) is False
    except ValueError as error:
        return str(error)
    if off:
        return f"{setting}={os.environ[setting]} is set, so {otherwise}: unset it"
    return ""


def _door_text(door: str) -> str:
    if not door:
        return ""
    return f", served by {door}" if _exists(door) else f", but {door} is not part of this version"


def _exists(module: str) -> bool:
    return importlib.util.find_spec(module) is not None and not not_yet.is_empty(module)


def version_of(distributions: tuple[str, ...]) -> str | None:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def original_horovod() -> list[Finding]:
    """Return a finding if Horovod itself is installed too. Both own the folder `horovod`, so each breaks the other."""
    try:
        found = importlib.metadata.distribution("horovod")
    except importlib.metadata.PackageNotFoundError:
        return []
    if any(requirement.startswith("khorovod") for requirement in found.requires or []):
        return []  # the distribution without code that depends on khorovod
    value = f"the original, {found.version}, is installed in {found.locate_file('')}"
    advice = "pip uninstall -y horovod khorovod && pip install khorovod: both own the folder 'horovod'"
    return [Finding("horovod", value, advice)]
