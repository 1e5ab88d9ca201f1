# SPDX-License-Identifier: Apache-2.0
"""horovodrun --mpi with real mpirun of Open MPI and MPICH, on this host and over ssh on others."""

import sys
from pathlib import Path

import pytest
from launcherkit import mpi
from testkit.launcher import HOROVODRUN
from testkit.processes import run

ALLREDUCE = [sys.executable, str(Path(__file__).with_name("programs") / "allreduce.py")]
WITH_GPUS = ["sh", "-c", f'{" ".join(ALLREDUCE)} | sed "s/$/ ${{CUDA_VISIBLE_DEVICES-none}}/"']


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_horovodrun_through_mpirun(name, hosts, horovodrun, tmp_path):
    env = mpi.install(name).on_path() | {
        "HOROVOD_SHARED_DIR": str(tmp_path),
        "CUDA_VISIBLE_DEVICES": "3",
    }
    done = horovodrun("--mpi", "-np", "2", *WITH_GPUS, env=env)
    shown = sorted(done.stdout.split("\n"))
    assert (done.returncode, shown) == (0, ["", "h1 0/2 0/2 0/1 1 3", "h1 1/2 1/2 0/1 1 3"]), done.stderr
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {hosts.ssh} "$@"\n')
    ssh.chmod(0o755)
    reached = {"openmpi": f"--prtemca plm_ssh_agent {ssh}", "mpich": f"-launcher-exec {ssh}"}[name]
    done = horovodrun("--mpi", "-H", "h1:1,h2:2", "--mpi-args", reached, *WITH_GPUS, env=env)
    assert done.returncode == 0, done.stderr
    own = {"openmpi": "3", "mpich": "none"}[name]  # MPICH's mpirun would send the launcher's list of GPUs to all hosts
    ranks = [f"h1 0/3 0/1 0/2 3 {own}", "h2 1/3 0/2 1/2 3 none", "h2 2/3 1/2 0/1 3 none"]
    assert sorted(done.stdout.split("\n")) == ["", *ranks]


FUNCTION = """
import os, sys, horovod

def place(caller, fails=False):
    import os, signal, time
    import numpy as np
    import horovod.numpy as hvd
    received = []
    signal.signal(signal.SIGUSR1, lambda number, _: received.append(number))
    hvd.init()
    total = hvd.allreduce(np.ones(1), op=hvd.Sum).item()
    sys.stdout.write(f"here is {hvd.rank()}\\n")
    if fails and hvd.rank() == 1:
        raise KeyError("lost in rank 1")
    if hvd.rank() == 0 and not fails:  # after a failure the caller may have no handler for it any more
        os.kill(caller, signal.SIGUSR1)
    until = time.monotonic() + 20
    while not received and time.monotonic() < until:
        time.sleep(0.01)
    return hvd.rank(), hvd.size(), total, bool(received)

caller = os.getpid()
assert horovod.run(place, [caller], num_proc=2, use_mpi=True) == [(0, 2, 2.0, True), (1, 2, 2.0, True)]
try:
    horovod.run(place, [caller, True], num_proc=2, use_mpi=True)
except RuntimeError as error:
    assert str(error).startswith("mpirun failed with exit code "), error
    assert "lost in rank 1" in str(error), error
else:
    raise AssertionError("no error")
"""


def test_a_function_through_mpirun():
    done = run([sys.executable, "-c", FUNCTION], mpi.install("openmpi").on_path(), limit_s=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"here is 0", "here is 1"} <= set(done.stdout.splitlines())


def test_without_mpirun_it_says_what_is_needed(tmp_path):
    done = run([*HOROVODRUN, "--mpi", "-np", "2", "true"], {"PATH": str(tmp_path)})
    assert done.returncode == 2
    assert "--mpi needs mpirun of Open MPI, MPICH, Intel MPI or Spectrum MPI on PATH" in done.stderr
