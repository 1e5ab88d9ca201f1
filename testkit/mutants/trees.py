# SPDX-License-Identifier: Apache-2.0
"""Tree of one job: a copy of the sources with its own build, in which one mutant at a time is made and undone.

The build compiles each file separately, because a unity build would compile a whole folder for one changed line. It
uses -O1 without debug information, which compiles fast; with -O0 the tests, which sum millions of numbers, would lose
more time than the compiler gains. `undo` restores the objects of the unmutated sources with their modification times,
so that the next mutant compiles only its own changes.
"""

from __future__ import annotations

import filecmp
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from testkit.mutants.change import Change
from testkit.mutants.provenance import PACKAGE_VARIABLE
from testkit.mutants.runs import Run, run
from testkit.mutants.verdicts import Ended
from testkit.places import python_path

_CONFIGURE_LIMIT_S = 120.0
_LEFT_OUT = ("__pycache__", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache")
_LEFT_OUT_AT_ROOT = (*_LEFT_OUT, ".git", ".venv", "build", "dist")
_TARGETS = ("engine_tests", "hvd")
_OUTPUTS = ("build/engine/engine_tests", "build/engine/libhvd.so")


class BuildError(RuntimeError):
    """Error for unmutated sources that cannot be built."""


class Tree:
    """Working copy of one job: `root` has the sources and build/, `pristine` a copy of build/ without a mutant."""

    def __init__(self, folder: Path, sources: Path, threads: int = 1) -> None:
        self.root = folder / "tree"
        self.pristine = folder / "pristine"
        self._is_whole = folder / "pristine-is-whole"
        self._sources = sources
        self._threads = threads
        self._same_code = ""
        self._original = b""
        self._original_time = 0

    @property
    def package(self) -> Path:
        return self.root / "src" / "horovod"

    def environment(self) -> dict[str, str]:
        """Return the environment for this tree's tests, in which its package precedes installed ones."""
        return {
            "PYTHONPATH": python_path(self.root / "src"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            PACKAGE_VARIABLE: str(self.package),
        }

    def prepare(self, limit_s: float) -> None:
        """Copy changed sources to the tree and build it. Raise BuildError if that fails or takes too long."""
        if self._is_whole.exists():  # a slice may have been killed while a mutant was built
            mirror(self.pristine, self.root / "build")
        copy_changed(self._sources, self.root)
        self._forget_examples()
        definitions = {
            "CMAKE_BUILD_TYPE": "Debug",
            "CMAKE_CXX_FLAGS_DEBUG": "-O1 -g0",
            "CMAKE_LINK_DEPENDS_NO_SHARED": "ON",
            "HVD_BUILD_TESTS": "ON",
            "HVD_UNITY": "OFF",
            "Python_EXECUTABLE": sys.executable,
        }
        settings = [f"-D{name}={value}" for name, value in definitions.items()]
        configured = self._run(["cmake", "-S", ".", "-B", "build", "-G", "Ninja", *settings], _CONFIGURE_LIMIT_S)
        built = self._build(("all", *_TARGETS), limit_s) if configured.ended is Ended.PASSED else configured
        installed = self._install() if built.ended is Ended.PASSED else built
        if installed.ended is Ended.HANGS:
            raise BuildError("the build takes longer than the slice: the next slice goes on with it")
        if installed.ended is not Ended.PASSED:
            raise BuildError(f"the sources cannot be built:\n{installed.printed[-4000:]}")
        self._is_whole.unlink(missing_ok=True)
        mirror(self.root / "build", self.pristine)
        self._is_whole.touch()
        self._same_code = self._digest()

    def make(self, change: Change, limit_s: float) -> Run:
        """Change the line; build and install the engine if the file is the engine's.

        The caller must call undo afterwards.
        """
        file = self.root / change.path
        self._original, self._original_time = file.read_bytes(), file.stat().st_mtime_ns
        file.write_bytes(change.apply_to(self._original.decode()).encode())
        if not change.path.startswith("engine/"):
            return Run(Ended.PASSED, 0.0, "")
        built = self._build(_TARGETS, limit_s)
        return self._install() if built.ended is Ended.PASSED else built

    def undo(self, change: Change) -> None:
        """Restore the line and all that was built from it, with the earlier modification times."""
        self._forget_examples()
        file = self.root / change.path
        file.write_bytes(self._original)
        os.utime(file, ns=(self._original_time, self._original_time))
        if change.path.startswith("engine/"):
            mirror(self.pristine, self.root / "build")
            self._install()

    def _forget_examples(self) -> None:
        """Delete saved failing examples, so that each mutant is judged by equal examples."""
        shutil.rmtree(self.root / ".hypothesis", ignore_errors=True)

    def has_same_code(self, change: Change) -> bool:
        """Return True if the mutant compiles to the code of the original."""
        return change.path.startswith("engine/") and self._digest() == self._same_code

    def _digest(self) -> str:
        return "".join(hashlib.sha256((self.root / output).read_bytes()).hexdigest() for output in _OUTPUTS)

    def _build(self, targets: tuple[str, ...], limit_s: float) -> Run:
        return self._run(["ninja", "-C", "build", f"-j{self._threads}", *targets], limit_s)

    def _install(self) -> Run:
        return self._run(["cmake", "--install", "build", "--prefix", "src"], _CONFIGURE_LIMIT_S)

    def _run(self, command: list[str], limit_s: float) -> Run:
        return run(command, self.root, self.environment(), limit_s)


def copy_changed(source: Path, target: Path) -> None:
    """Copy the files that differ, and delete files that the source lacks, except build outputs.

    A new file keeps its modification time. A replaced file gets the current time, so that it is compiled again.
    """
    wanted = set(_files(source))
    for path in sorted(wanted):
        to = target / path
        if not to.exists():
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / path, to)
        elif not filecmp.cmp(source / path, to, shallow=False):
            shutil.copyfile(source / path, to)
    for path in set(_files(target)) - wanted:
        (target / path).unlink()


def mirror(source: Path, target: Path) -> None:
    """Make `target` equal to `source`, including times; copy only files whose size or time differs."""
    theirs = {path.relative_to(source) for path in source.rglob("*") if not path.is_dir()}
    for path in theirs:
        was, to = (source / path).stat(), target / path
        found = to.stat() if to.exists() else None
        if found is None or (found.st_size, found.st_mtime_ns) != (was.st_size, was.st_mtime_ns):
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / path, to)
    for path in [path for path in target.rglob("*") if not path.is_dir()]:
        if path.relative_to(target) not in theirs:
            path.unlink()


def _files(root: Path) -> Iterator[Path]:
    """Yield the files of a repository, without build outputs and the caches of tools."""
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        folders[:] = [name for name in folders if not name.startswith(_LEFT_OUT_AT_ROOT if here == root else _LEFT_OUT)]
        yield from ((here / name).relative_to(root) for name in names if not name.endswith(".so"))
