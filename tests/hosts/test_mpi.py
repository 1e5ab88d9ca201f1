# SPDX-License-Identifier: Apache-2.0
"""horovodrun --mpi: real mpirun of Open MPI and MPICH, on this host and over ssh on others."""

import os
import sys
from pathlib import Path

import pytest
from launcherkit import mpi
from testkit.launcher import HOROVODRUN
from testkit.processes import run

ALLREDUCE = [sys.executable, str(Path(__file__).with_name("programs") / "allreduce.py")]


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_horovodrun_through_mpirun(name, hosts, horovodrun, tmp_path):
    library = mpi.install(name)
    env = library.environment() | {
        "PATH": f"{library.folder}/bin{os.pathsep}{os.environ['PATH']}",
        "HOROVOD_SHARED_DIR": str(tmp_path),
    }
    done = horovodrun("--mpi", "-np", "2", *ALLREDUCE, env=env)
    assert (done.returncode, sorted(done.stdout.split("\n"))) == (0, ["", "h1 0/2 0/2 0/1 1", "h1 1/2 1/2 0/1 1"]), (
        done.stderr
    )
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {hosts.ssh} "$@"\n')
    ssh.chmod(0o755)
    reached = {"openmpi": f"--prtemca plm_ssh_agent {ssh}", "mpich": f"-launcher-exec {ssh}"}[name]
    done = horovodrun("--mpi", "-H", "h1:1,h2:2", "--mpi-args", reached, *ALLREDUCE, env=env)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == ["", "h1 0/3 0/1 0/2 3", "h2 1/3 0/2 1/2 3", "h2 2/3 1/2 0/1 3"]


FUNCTION = """
import sys, horovod

def place(fails=False):
    import numpy as np
    import horovod.numpy as hvd
    hvd.init()
    total = hvd.allreduce(np.ones(1), op=hvd.Sum).item()
    sys.stdout.write(f"here is {hvd.rank()}\\n")
    if fails and hvd.rank() == 1:
        raise KeyError("lost in rank 1")
    return hvd.rank(), hvd.size(), total

assert horovod.run(place, num_proc=2, use_mpi=True) == [(0, 2, 2.0), (1, 2, 2.0)]
try:
    horovod.run(place, [True], num_proc=2, use_mpi=True)
except RuntimeError as error:
    assert str(error).startswith("mpirun failed with exit code "), error
    assert "lost in rank 1" in str(error), error
else:
    raise AssertionError("no error")
"""


def test_a_function_through_mpirun():
    library = mpi.install("openmpi")
    env = library.environment() | {"PATH": f"{library.folder}/bin{os.pathsep}{os.environ['PATH']}"}
    done = run([sys.executable, "-c", FUNCTION], env, limit_s=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"here is 0", "here is 1"} <= set(done.stdout.splitlines())


def test_without_mpirun_it_says_what_is_needed(tmp_path):
    done = run([*HOROVODRUN, "--mpi", "-np", "2", "true"], {"PATH": str(tmp_path)})
    assert done.returncode == 2
    assert "--mpi needs mpirun of Open MPI, MPICH, Intel MPI or Spectrum MPI on PATH" in done.stderr
