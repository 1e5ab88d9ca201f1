# SPDX-License-Identifier: Apache-2.0
"""Detection of the MPI library, and the reasons reported when it cannot be loaded."""

from pathlib import Path

import pytest

from horovod.common import mpi_library

# Source of a fake mpi4py.MPI module, and the (version, error) that the detection returns for it.
MODULES = {
    "there": ("Get_library_version = lambda: 'Open MPI v5.0.11, package: x\\nmore\\0'", ("Open MPI v5.0.11", "")),
    "no library": (
        "raise RuntimeError('cannot load MPI library')",
        ("", "mpi4py finds no MPI: RuntimeError: cannot load MPI library"),
    ),
    "crashes": ("import os; os.abort()", ("", "mpi4py finds no MPI: exit code -6")),
}


@pytest.mark.parametrize("what", MODULES)
def test_another_process_looks(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, found = MODULES[what]
    package = tmp_path / "mpi4py"
    package.mkdir()
    (package / "__init__.py").write_text("class rc: initialize = True")
    (package / "MPI.py").write_text(f"from mpi4py import rc\nassert not rc.initialize\n{source}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert mpi_library.look.__wrapped__() == found


def test_without_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi_library, "is_installed", lambda: False)
    assert mpi_library.look.__wrapped__() == ("", "mpi4py is not installed")
