# SPDX-License-Identifier: Apache-2.0
"""A launcher that is suspended with Ctrl-Z for longer than the silence limit of its agents."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

import psutil
import pytest
from testkit.awaiting import await_that
from testkit.families import living
from testkit.processes import Process
from testkit.speed import patience

pytestmark = pytest.mark.timeout(60)
LIMIT_S = 20.0
SILENCE_LIMIT_S = 5.0  # shortened from ten seconds; even a busy machine sends a heartbeat in this time

HURRY = f"""
import sys
from horovod.launcher.remote import frames
frames.SILENCE_LIMIT_S, frames.ALIVE_EVERY_S = {SILENCE_LIMIT_S}, 0.1
"""
LAUNCHER = HURRY + "from horovod.launcher.launch import run_commandline; run_commandline()"
# Instead of ssh, start the agent on this machine, with the shorter silence limit.
AGENT = HURRY + "from horovod.launcher.remote import agent; sys.argv[1:] = []; sys.exit(agent.main())"


def test_a_suspended_launcher_keeps_its_job(tmp_path: Path):
    go_on, worker = tmp_path / "go on", tmp_path / "worker"
    script = (
        f'echo $$ > "{worker}.draft" && mv "{worker}.draft" "{worker}"; until test -e "{go_on}"; do sleep 0.05; done'
    )
    command = [sys.executable, "-c", LAUNCHER, "-H", "elsewhere:1", "sh", "-c", script]
    env = {"HOROVOD_SSH_COMMAND": shlex.join([sys.executable, "-c", AGENT])}
    # Start the job in its own process group, as a shell with job control does.
    with Process(command, env, preexec_fn=os.setpgrp) as job:
        await_that(worker.exists, LIMIT_S, job.account)
        job.send_signal(signal.SIGTSTP)
        await_that(lambda: psutil.Process(job.pid).status() == psutil.STATUS_STOPPED, LIMIT_S, job.account)
        lost = psutil.Process(int(worker.read_text()))
        with pytest.raises(psutil.TimeoutExpired):  # longer than the silence limit of the agents
            lost.wait(SILENCE_LIMIT_S + 1)
        job.send_signal(signal.SIGCONT)
        go_on.touch()
        assert job.wait(patience(LIMIT_S)) == 0, job.printed()


def test_agents_of_a_launcher_that_is_killed_while_it_is_suspended_end_the_job(tmp_path: Path):
    worker = tmp_path / "worker"
    script = f'echo $$ > "{worker}.draft" && mv "{worker}.draft" "{worker}"; exec sleep 100'
    command = [sys.executable, "-c", LAUNCHER, "-H", "elsewhere:1", "sh", "-c", script]
    env = {"HOROVOD_SSH_COMMAND": shlex.join([sys.executable, "-c", AGENT])}
    with Process(command, env, preexec_fn=os.setpgrp) as job:
        await_that(worker.exists, LIMIT_S, job.account)
        left = psutil.Process(int(worker.read_text()))
        job.send_signal(signal.SIGTSTP)
        await_that(lambda: psutil.Process(job.pid).status() == psutil.STATUS_STOPPED, LIMIT_S, job.account)
        job.kill()
        assert not living([left], patience(LIMIT_S))
