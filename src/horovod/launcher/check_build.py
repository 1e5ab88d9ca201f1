# SPDX-License-Identifier: Apache-2.0
"""Report of what works on this machine. It is determined at run time; nothing is decided when the package is built."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

_FRAMEWORKS = (
    ("TensorFlow", "tensorflow", "tensorflow"),
    ("PyTorch", "torch", "torch"),
    ("MXNet", "mxnet", "mxnet"),
    ("JAX", "jax", "jax"),
    ("NumPy", "numpy", "numpy"),
)


_IN_PLACE_OF_GLOO = "not part of this package: Khorovod's own engine takes its place"


@dataclass(frozen=True)
class Finding:
    """One line of the report. `reason` says what was found, or why the item is not available."""

    name: str
    available: bool
    reason: str


def frameworks() -> list[Finding]:
    return [_framework(name, package, door) for name, package, door in _FRAMEWORKS]


def controllers() -> list[Finding]:
    return [
        _mpi(),
        Finding("Gloo", False, _IN_PLACE_OF_GLOO),
        Finding("Khorovod", *_engine()),
    ]


def tensor_operations() -> list[Finding]:
    return [
        _nccl(),
        Finding("DDL", False, "superseded by NCCL"),
        Finding("CCL", False, _unused("libccl.so.1")),
        _mpi(),
        Finding("Gloo", False, _IN_PLACE_OF_GLOO),
        Finding("Khorovod", *_engine()),
    ]


def report(verbose: bool = False) -> str:
    from horovod.common.version import VERSION

    parts = [f"Horovod v{VERSION}:"]
    for title, findings in (
        ("Available Frameworks", frameworks()),
        ("Available Controllers", controllers()),
        ("Available Tensor Operations", tensor_operations()),
    ):
        parts.append("\n".join([f"{title}:", *_boxes(findings, verbose)]))
    return "\n\n".join(parts) + "\n"


def _boxes(findings: Sequence[Finding], verbose: bool) -> list[str]:
    return [
        f"    [{'X' if finding.available else ' '}] {finding.name}" + (f"  ({finding.reason})" if verbose else "")
        for finding in findings
    ]


def _framework(name: str, package: str, door: str) -> Finding:
    if importlib.util.find_spec(package) is None:
        return Finding(name, False, f"{package} is not installed")
    if importlib.util.find_spec(f"horovod.{door}") is None:
        return Finding(name, False, f"{package} is installed, but horovod.{door} is not part of this version")
    loaded, reason = _engine()
    return Finding(name, loaded, f"horovod.{door}" if loaded else reason)


def _engine() -> tuple[bool, str]:
    """Return whether the engine can be loaded, and the reason if it cannot."""
    try:
        importlib.import_module("horovod._engine")
    except ImportError as error:
        return False, f"the engine cannot be loaded: {error}"
    return True, "built in"


def _nccl() -> Finding:
    from horovod.common import nccl_library

    number = nccl_library.version()
    reason = f"version {nccl_library.spoken(number)}" if number else f"{nccl_library.NAME} cannot be found"
    return Finding("NCCL", number > 0, reason)


def _mpi() -> Finding:
    from horovod.common import mpi_library

    library, why_not = mpi_library.look()
    return Finding("MPI", bool(library), why_not or library)


def _unused(library: str) -> str:
    import ctypes

    try:
        ctypes.CDLL(library)
    except OSError:
        return f"{library} cannot be opened"
    return f"{library} can be opened, but this version does not use it"
