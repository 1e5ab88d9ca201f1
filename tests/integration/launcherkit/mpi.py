# SPDX-License-Identifier: Apache-2.0
"""Open MPI and MPICH, each installed once into a folder of its own: they would overwrite each other in one."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[3]
_FOLDER = Path(os.environ.get("BUILD") or _ROOT / "build") / f"mpi-{sys.version_info[0]}{sys.version_info[1]}"
_PACKAGES = {"openmpi": ["openmpi", "mpi4py"], "mpich": ["mpich"]}


@dataclass(frozen=True)
class Mpi:
    name: str
    folder: Path

    @property
    def mpirun(self) -> str:
        return str(self.folder / "bin" / "mpirun")

    def environment(self) -> dict[str, str]:
        """What mpirun and its ranks need; mpi4py is found where this brings one."""
        packages = sysconfig.get_path("purelib", vars={"base": str(self.folder)})
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), packages]))
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return {**os.environ, **root, "PYTHONPATH": path, "LD_LIBRARY_PATH": str(self.folder / "lib")}


def install(name: str) -> Mpi:
    mpi = Mpi(name, _FOLDER / name)
    complete = mpi.folder / ".complete"
    if not complete.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        where = ["--ignore-installed", "--prefix", str(mpi.folder), "--constraint", str(_ROOT / "constraints-test.txt")]
        done = subprocess.run(
            [*pip, *where, *_PACKAGES[name]], capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, f"pip could not install {_PACKAGES[name]}:\n{done.stdout}{done.stderr}"
        complete.touch()
    return mpi
