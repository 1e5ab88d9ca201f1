# SPDX-License-Identifier: Apache-2.0
"""horovodrun inside an LSF job. LSF is not installed, so blaunch and jsrun are stand-ins that use ssh."""

import os
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).with_name("programs")
ALLREDUCE = [sys.executable, str(PROGRAMS / "allreduce.py")]


@pytest.fixture
def lsf(hosts, tmp_path):
    """Return the variables of a job on h1 and h2."""
    return {
        "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
        "TEST_SSH": hosts.ssh,
        "HOROVOD_SSH_COMMAND": "false",
        "HOROVOD_SHARED_DIR": str(tmp_path),
        "LSB_JOBID": "7",
        "LSB_MCPU_HOSTS": "h1 1 h2 2",
        "CUDA_VISIBLE_DEVICES": "3",
    }


def test_agents_are_started_with_blaunch_and_the_launchers_host_keeps_its_gpus(lsf, horovodrun):
    show = ["sh", "-c", f'{" ".join(ALLREDUCE)} | sed "s/$/ ${{CUDA_VISIBLE_DEVICES:-none}}/"']
    done = horovodrun(*show, env=lsf)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = sorted(line.partition(":")[2] for line in done.stdout.splitlines())
    assert shown == ["h1 0/3 0/1 0/2 3 3", "h2 1/3 0/2 1/2 3 none", "h2 2/3 1/2 0/1 3 none"]


def test_ranks_are_started_with_jsrun_if_asked(lsf, horovodrun):
    done = horovodrun(
        "--jsrun", *ALLREDUCE, env=lsf | {"LSB_MCPU_HOSTS": "batch 1 h2 2 h3 2", "CSM_ALLOCATION_ID": "9"}
    )
    assert (done.returncode, done.stderr.count("--jsrun")) == (0, 0), done.stderr
    assert sorted(done.stdout.split()[0::5]) == ["h2", "h2", "h3", "h3"]


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["-np", "3"], "--jsrun needs the same number of ranks on every host, not h1:1, h2:2: choose another -np"),
        (["-H", "h1:1"], "-H cannot be combined with --jsrun"),
        (["--output-filename", "x"], "--output-filename cannot be combined with --jsrun"),
    ],
)
def test_what_jsrun_cannot_do_is_refused_by_name(lsf, horovodrun, flags, text):
    done = horovodrun("--jsrun", *flags, "true", env=lsf)
    assert done.returncode == 2
    assert text in done.stderr


def test_jsrun_outside_of_lsf_is_refused_by_name(lsf, horovodrun):
    done = horovodrun("--jsrun", "-np", "1", "true", env=lsf | {"LSB_JOBID": ""})
    assert "--jsrun works inside an LSF job" in done.stderr
    done = horovodrun("--jsrun", "-np", "1", "true", env=lsf | {"PATH": os.environ["PATH"]})
    assert "--jsrun needs LSF's jsrun on PATH" in done.stderr
