# SPDX-License-Identifier: Apache-2.0
"""Files to change: five subfolders of the engine, and the Python modules without a clock, thread or socket."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

ENGINE, PYTHON = "engine", "python"
# Three of four mutants are the engine's, which has five times as many lines that can be changed. One of four suffices
# to find gaps in the table tests of Python's pure modules.
WEIGHTS = {ENGINE: 3, PYTHON: 1}

_WINGS = ("agreement", "core", "collectives", "transport", "memory")
# No judge covers these files: they need a GPU or an MPI library.
_GPU_ONLY = (
    "agreement/device_names",
    "collectives/across_gpus",
    "collectives/device_slots",
    "collectives/gpu_layout",
    "collectives/gpu_mates",
    "collectives/nccl_meeting",
    "collectives/on_device",
    "collectives/over_nccl",
    "collectives/region_meeting",
    "core/device_execution",
    "core/device_outputs",
    "core/direct_on_device",
    "core/gpu_settings",
    "core/host_copy",
    "core/launch_turn",
    "core/nccl_execution",
    "core/prompt_runs",
    "core/staged_execution",
)
_MPI_ONLY = ("collectives/foreign", "core/foreign_execution")
# Kernels for instruction sets that some processors of an architecture lack.
_KERNELS_ELSEWHERE = {
    "x86_64": ("kernels_neon", "kernels_neon_fp16", "kernels_avx512"),
    "aarch64": ("kernels_avx2", "kernels_avx512", "kernels_neon_fp16"),
}


@dataclass(frozen=True)
class PythonPart:
    """Pure module. If `used_by_ranks`, ranks of the NumPy API run it, so rank tests may notice a mistake in it."""

    path: str
    used_by_ranks: bool = False


PYTHON_PARTS = (
    PythonPart("common/rules.py", used_by_ranks=True),
    PythonPart("common/settings_values.py", used_by_ranks=True),
    PythonPart("common/topology.py", used_by_ranks=True),
    PythonPart("common/rendezvous/meeting.py", used_by_ranks=True),
    PythonPart("common/rendezvous/protocol.py", used_by_ranks=True),
    PythonPart("common/rendezvous/store.py", used_by_ranks=True),
    PythonPart("common/rendezvous/waiting_list.py"),
    PythonPart("common/host_shares.py"),
    PythonPart("common/joining/loss.py"),
    PythonPart("common/lineage.py"),
    PythonPart("common/slots.py"),
    PythonPart("common/sync_decision.py"),
    PythonPart("launcher/start/allocation.py"),
    PythonPart("launcher/start/hosts.py"),
    PythonPart("launcher/start/supervision.py"),
    PythonPart("launcher/elastic/choice.py"),
    PythonPart("launcher/elastic/cut_rules.py"),
    PythonPart("launcher/elastic/cuts.py"),
    PythonPart("launcher/elastic/end_rules.py"),
    PythonPart("launcher/elastic/event_rules.py"),
    PythonPart("launcher/elastic/generation_rules.py"),
    PythonPart("launcher/elastic/host_book.py"),
    PythonPart("launcher/elastic/membership.py"),
    PythonPart("launcher/elastic/places.py"),
    PythonPart("launcher/elastic/progress.py"),
    PythonPart("launcher/elastic/turn.py"),
    PythonPart("launcher/elastic/upkeep_rules.py"),
    PythonPart("launcher/remote/addresses.py"),
    PythonPart("torch/gradients/rounds.py"),
    PythonPart("torch/hooks/comparison.py"),
    PythonPart("torch/hooks/layout.py"),
)
PACKAGE = "src/horovod"


def engine_files(root: Path, machine: str = platform.machine()) -> list[str]:
    """Return the engine's files to change, as paths relative to the repository's root."""
    elsewhere = [f"collectives/{name}" for name in _KERNELS_ELSEWHERE.get(machine, ())]
    left_out = {*_GPU_ONLY, *_MPI_ONLY, *elsewhere}
    found = [path for wing in _WINGS for path in sorted((root / "engine" / wing).glob("*.[hc]*"))]
    return [str(path.relative_to(root)) for path in found if f"{path.parent.name}/{path.stem}" not in left_out]


def python_files() -> list[str]:
    """Return the Python files to change, as paths relative to the repository's root."""
    return [f"{PACKAGE}/{part.path}" for part in PYTHON_PARTS]


def is_used_by_ranks(path: str) -> bool:
    """Return True if ranks of the NumPy API run this file."""
    return path.startswith("engine/") or any(
        part.used_by_ranks and path == f"{PACKAGE}/{part.path}" for part in PYTHON_PARTS
    )
