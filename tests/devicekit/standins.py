# SPDX-License-Identifier: Apache-2.0
"""Compilation of the stand-ins for libraries that need a GPU."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from testkit.places import ROOT
from testkit.speed import patience

STANDIN = ROOT / "tests" / "device" / "standin"
LATE = {"STANDIN_DELAY_US": "200"}
OWN_GPUS = {"STANDIN_UUID_BY_RANK": "1"}  # programs see to it
# The flags give the rounding and wrapping of the engine's own kernels.
_FLAGS = ["-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off"]


_compiled: dict[tuple[str, ...], Path] = {}  # libraries, by their sources and options


def compile_library(sources: str, library: Path, options: Sequence[str]) -> None:
    """Compile the source files that match a pattern to a library; if that was done before, copy the library."""
    made = _compiled.setdefault((sources, *options), library)
    if made != library:
        shutil.copyfile(made, library)
        return
    files = sorted(str(it) for it in STANDIN.glob(sources))
    command = [os.environ.get("CXX", "g++"), *_FLAGS, *options, "-o", str(library), *files]
    subprocess.run(command, check=True, timeout=patience(150))


def compile_standin(folder: Path, *libraries: str) -> dict[str, str]:
    """Compile stand-in libraries; return the variables with which ranks load them.

    The variables also set small slots, dynamic process sets, and a graph that is being captured. Items of `libraries`
    that begin with -D are definitions for the compiler.
    """
    places = [f"-I{ROOT / 'engine'}", f"-I{ROOT / 'engine' / 'include'}"]
    definitions = [it for it in libraries if it.startswith("-D")]
    for library in (it for it in libraries if not it.startswith("-D")):
        compile_library(
            f"{library.split('.')[0]}*.cc", folder / library, [*places, *definitions, f"-Wl,-soname,{library}"]
        )
    before = os.environ.get("LD_LIBRARY_PATH")
    nccl = str(folder / "libnccl.so.2")  # an explicit path, because torch for CUDA has loaded its own NCCL
    return {
        **({"HOROVOD_NCCL_LIBRARY": nccl, "STANDIN_NCCL": nccl} if "libnccl.so.2" in libraries else {}),
        "LD_LIBRARY_PATH": os.pathsep.join([str(folder), *filter(None, [before])]),
        "STANDIN_CAPTURING": "1",
        "HOROVOD_GPU_SLOT_BYTES": "65536",
        "HOROVOD_GPU_STAGED_BYTES": "0",
        "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
    }
