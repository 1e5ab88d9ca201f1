# SPDX-License-Identifier: Apache-2.0
"""What is known of NCCL without a GPU."""

import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from horovod.common import nccl_library
from horovod.common.util import nccl_built
from horovod.runner import check_build


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No NCCL is loaded, installed or to be found."""

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.delenv(nccl_library.VARIABLE, raising=False)
    monkeypatch.setattr(metadata, "version", missing)
    monkeypatch.setattr(nccl_library, "NAME", "libnccl_of_no_machine.so.2")
    nccl_library._of_system.cache_clear()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    source, file = tmp_path / "nccl.c", tmp_path / "libnccl.so.2"
    source.write_text("int ncclGetVersion(int* version) { *version = 21805; return 0; }")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(file), str(source)], check=True, timeout=60)
    return file


def test_there_may_be_none(nowhere: None) -> None:
    assert nccl_built() == 0
    (finding,) = (it for it in check_build.tensor_operations() if it.name == "NCCL")
    assert not finding.available
    assert "cannot be found" in finding.reason


def test_a_file_may_be_named(nowhere: None, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(nccl_library.VARIABLE, str(library))
    assert nccl_built() == 21805
    monkeypatch.setenv(nccl_library.VARIABLE, str(library.with_name("other.so")))
    assert nccl_built() == 0


def test_a_wheel_tells_its_version_without_being_loaded(nowhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "2.28.9.post1")
    assert nccl_built() == 22809
    (finding,) = (it for it in check_build.tensor_operations() if it.name == "NCCL")
    assert finding.available
    assert finding.reason == "version 2.28.9"
