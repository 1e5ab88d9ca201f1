# SPDX-License-Identifier: Apache-2.0
"""Detection of NCCL and its version without a GPU."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from testkit.speed import patience

from horovod.common import nccl_library
from horovod.common.joining import bootstrap
from horovod.common.settings import Settings
from horovod.common.topology import Topology
from horovod.common.util import nccl_built
from horovod.launcher import check_build


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine where NCCL is neither loaded nor installed."""

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
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(file), str(source)], check=True, timeout=patience(60))
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


@pytest.fixture
def site(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate an installed wheel: a site directory with an NCCL 2.18.5 at the wheel's path."""
    folder = tmp_path / "site-packages"
    file = folder / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    file.parent.mkdir(parents=True)
    library.rename(file)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "nowhere"), str(folder)])
    return file


def test_the_file_of_a_wheel_is_found_where_the_system_does_not_look(site: Path, tmp_path: Path) -> None:
    assert nccl_library.bundled() == str(site)
    site.unlink()
    assert nccl_library.bundled() is None


def test_the_engine_is_told_of_it(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}

    class ToldError(Exception):
        pass

    def world(**arguments: Any) -> None:
        told.update(arguments)
        raise ToldError

    monkeypatch.setattr(bootstrap, "World", world)
    with pytest.raises(ToldError):
        bootstrap.open_world(Settings({"HOROVOD_CHUNK_SLOTS": 2}), Topology(), 0, "127.0.0.1", "0", b"")
    assert told["settings"] == {"slots": 2, "nccl_bundled": os.fsencode(site)}
