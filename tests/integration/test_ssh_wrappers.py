# SPDX-License-Identifier: Apache-2.0
"""HOROVOD_SSH_COMMAND may be a script around ssh. If a host does not answer, all processes of the script end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from testkit.families import Mark, described
from testkit.launcher import HOROVODRUN
from testkit.processes import Process
from testkit.speed import patience

pytestmark = pytest.mark.timeout(90)

# Each process stands for an ssh that never answers: a child of the script, one in another process group or session, and
# one that ignores all signals but SIGKILL. For the host "left", the script ends while its ssh runs on.
SSH = """#!/bin/sh
case "$*" in *left*) sleep 1000 & exit 0 ;; esac
timeout 1000 sleep 1000 &
setsid sleep 1000 &
sh -c 'trap "" HUP INT TERM; sleep 1000; sleep 1000' &
sleep 1000
"""
HVD = [sys.executable, "-m", "horovod.tools.cli"]
COMMANDS = {
    "static": [*HOROVODRUN, "-H", "far:1,left:1", "true"],
    "elastic": [*HOROVODRUN, "-H", "far:1,left:1", "-np", "2", "--min-np", "2", "--elastic-timeout", "3", "true"],
    "doctor": [*HVD, "doctor", "-H", "far:1,left:1"],
    "test": [*HVD, "test", "-H", "far:1,left:1"],
}


def test_a_script_around_ssh_leaves_nothing_behind_after_a_start_timeout(tmp_path: Path):
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    marks = {name: Mark(f"TEST_SSH_{name.upper()}") for name in COMMANDS}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    jobs = {}
    for name, command in COMMANDS.items():
        env = {"HOROVOD_SSH_COMMAND": str(ssh), "HOROVOD_START_TIMEOUT": "2", marks[name].name: marks[name].value}
        jobs[name] = Process(command, env, **pipes)
    for name, job in jobs.items():
        with job:
            shown, _ = job.communicate(timeout=patience(60))
            left = [described(process) for process in marks[name].processes()]
            assert left == [], f"{name}\n{shown}"
            assert job.returncode == 1, f"{name}\n{shown}"
            assert "no answer within 2 s (--start-timeout)" in shown, name
