# SPDX-License-Identifier: Apache-2.0
"""horovodrun --mpi: output of the ranks on the console and in files, with Open MPI and MPICH."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from launcherkit import mpi
from testkit.launcher import horovodrun, lines_by_rank
from testkit.processes import run

from horovod.common.own_programs import module_arguments

pytestmark = pytest.mark.timeout(120)

RANK = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
PROGRAM = ["sh", "-c", f"echo out {RANK}; echo err {RANK} >&2"]
TIME = r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}"


def files_below(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(("name", "size"), [("openmpi", 11), ("mpich", 2)])
def test_output_is_tagged_and_kept_as_without_mpi(name: str, size: int, tmp_path: Path):
    flags = ["--output-filename", "out", "--tag", "always", "--prefix-output-with-timestamp"]
    env = mpi.install(name).on_path()
    done = horovodrun("--mpi", "-np", str(size), *flags, *PROGRAM, env=env, limit_s=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    digits = len(str(size - 1))
    kept = {
        f"rank.{rank:0{digits}}/std{stream}": f"{stream} {rank}\n" for rank in range(size) for stream in ("out", "err")
    }
    assert files_below(tmp_path / "out") == kept
    for stream, shown in (("out", done.stdout), ("err", done.stderr)):
        assert len(re.findall(rf"^{TIME}\[\d+\]<std{stream}>:", shown, re.MULTILINE)) == size, shown
        without_time = re.sub(rf"^{TIME}", "", shown, flags=re.MULTILINE)
        assert lines_by_rank(without_time, f"std{stream}") == {rank: [f"{stream} {rank}"] for rank in range(size)}


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_files_alone_leave_console_and_exit_code_as_they_are(name: str, tmp_path: Path):
    program = ["sh", "-c", "seq 20000; exit 3"]
    flags = ["--output-filename", str(tmp_path / "out")]
    done = horovodrun("--mpi", "-np", "2", *flags, *program, env=mpi.install(name).on_path(), limit_s=60)
    assert done.returncode == 3, done.stderr
    numbers = "".join(f"{number}\n" for number in range(1, 20001))
    assert files_below(tmp_path / "out")["rank.0/stdout"] == numbers
    assert "<stdout>" not in done.stdout
    assert "12345\n" in done.stdout


def as_rank(*words: str) -> list[str]:
    return [sys.executable, *module_arguments("horovod.launcher.start.mpi_rank"), *words]


PLACE = {"PMI_RANK": "1", "PMI_SIZE": "2"}


def test_a_rank_is_the_process_that_mpirun_has_started():
    """The rank has only children that it started itself, and does not ignore signals that Python ignores."""
    script = "read children < /proc/$$/task/$$/children; echo $$ $children; exec grep SigIgn /proc/self/status"
    done = run(["sh", "-c", 'echo $$; exec "$@"', "sh", *as_rank("--tags", "--", "sh", "-c", script)], PLACE)
    pid, *lines = done.stdout.splitlines()
    assert (done.returncode, lines[0]) == (0, f"[1]<stdout>:{pid}"), done.stdout + done.stderr
    ignored = int(lines[1].rpartition("\t")[2], 16)
    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


def test_what_a_rank_leaves_running_is_still_forwarded(tmp_path: Path):
    gone = tmp_path / "gone"
    script = f"(until test -e {gone}; do sleep 0.01; done; echo late) & echo $$"
    starter = '"$@"; touch "$0"'  # the rank has ended when `touch` runs
    done = run(["sh", "-c", starter, str(gone), *as_rank("--tags", "--", "sh", "-c", script)], PLACE)
    assert lines_by_rank(done.stdout)[1][1:] == ["late"], done.stdout + done.stderr


def test_what_cannot_be_started_or_kept_is_an_error(tmp_path: Path):
    done = run(as_rank("--tags", "--", "nosuch"), PLACE)
    assert (done.returncode, done.stderr) == (
        127,
        "[1]<stderr>:horovodrun: error: command not found: 'nosuch'\n",
    )
    file = tmp_path / "file"
    file.touch()
    done = run(as_rank("--directory", str(file), "--", "echo", "ran"), PLACE)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"horovodrun: error: rank 1 cannot write its output: [Errno 20] Not a directory: '{file}" in done.stderr
    assert os.path.isfile(file)
