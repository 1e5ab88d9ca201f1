# SPDX-License-Identifier: Apache-2.0
"""Open MPI and MPICH, each installed once into its own folder, because their files would overwrite each other."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from testkit.places import ROOT
from testkit.processes import run

_FOLDER = Path(os.environ.get("BUILD") or ROOT / "build") / f"mpi-{sys.version_info[0]}{sys.version_info[1]}"
_PACKAGES = {"openmpi": ["openmpi", "mpi4py"], "mpich": ["mpich", "mpi4py"]}


@dataclass(frozen=True)
class Mpi:
    name: str
    folder: Path

    @property
    def mpirun(self) -> str:
        return str(self.folder / "bin" / "mpirun")

    def environment(self) -> dict[str, str]:
        """Return the variables that mpirun and its ranks need, with the installed mpi4py on PYTHONPATH."""
        packages = sysconfig.get_path("purelib", vars={"base": str(self.folder)})
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), packages]))
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return {**root, "PYTHONPATH": path, "LD_LIBRARY_PATH": str(self.folder / "lib")}

    def on_path(self) -> dict[str, str]:
        """Return the variables that horovodrun --mpi needs: those of `environment`, with this mpirun first on PATH."""
        return {**self.environment(), "PATH": f"{self.folder}/bin{os.pathsep}{os.environ['PATH']}"}


def install(name: str) -> Mpi:
    mpi = Mpi(name, _FOLDER / name)
    complete = mpi.folder / f".complete-{'-'.join(_PACKAGES[name])}"
    if not complete.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        where = ["--ignore-installed", "--prefix", str(mpi.folder), "--constraint", str(ROOT / "constraints-test.txt")]
        done = run([*pip, *where, *_PACKAGES[name]], limit_s=100)
        assert done.returncode == 0, f"pip could not install {_PACKAGES[name]}:\n{done.stdout}{done.stderr}"
        complete.touch()
    return mpi
