# SPDX-License-Identifier: Apache-2.0
"""Jobs that horovodrun restarts after a failure and that resume from their own checkpoints."""

import signal
import subprocess

from testkit.launcher import horovodrun, python

import horovod

# A program without elastic training: it counts to 3 and keeps its checkpoint in a file.
COUNTS = """
import os, sys
import numpy as np
import horovod.numpy as hvd

hvd.init()
file = sys.argv[1]
begin = int(open(file).read()) if os.path.exists(file) else 0
restarts = int(os.environ["HOROVOD_RESTART_COUNT"])
print("begin", begin, "restarts", restarts, flush=True)
for step in range(begin, 3):
    hvd.allreduce(np.ones(2), name="x")
    if hvd.rank() == 0:
        with open(file, "w") as out:
            out.write(str(step + 1))
    hvd.barrier()
    if restarts == 0 and step == 0 and hvd.rank() == 1:
        os.kill(os.getpid(), 9)
    if restarts == 1 and step == 1 and hvd.rank() == 0:
        sys.exit(3)
print("counted", flush=True)
"""


def test_a_plain_program_goes_on_from_its_checkpoint_until_the_restarts_are_used_up(tmp_path):
    def job(most, file):
        output = ("--output-filename", str(tmp_path / file))
        return horovodrun("-np", "2", "--max-restarts", most, *output, *python(COUNTS), str(tmp_path / f"{file}.count"))

    done = job("1", "a")
    assert done.returncode == 3, done.stderr
    assert "horovodrun: restart 1 of 1: rank 1 on localhost: killed by signal 9 (SIGKILL)" in done.stderr
    assert done.stderr.count("restart ") == 1
    done = horovodrun("-np", "2", *python(COUNTS), str(tmp_path / "a.count"), env={"HOROVOD_MAX_RESTARTS": "1"})
    assert done.returncode == 0, done.stderr  # this is a new job, which resumes at 2
    assert done.stdout.count("begin 2 restarts 0") == 2
    written = (tmp_path / "a" / "rank.0" / "stdout").read_text()
    assert written == "begin 0 restarts 0\nbegin 1 restarts 1\n"


def test_a_function_is_called_again(tmp_path):
    def fails_at_first(file):
        import os

        if os.environ["HOROVOD_RESTART_COUNT"] == "0":
            raise ValueError("not yet")
        return file

    assert horovod.run(fails_at_first, ("x",), num_proc=2, max_restarts=1) == ["x", "x"]


def test_a_signal_in_the_pause_before_a_restart_ends_the_job(launch):
    job = launch("-np", "1", "--max-restarts", "9", "false", stderr=subprocess.PIPE, text=True)
    for line in job.stderr:
        if "restart 2 of 9" in line:  # the pause is 2 s
            break
    job.send_signal(signal.SIGTERM)
    assert job.wait(20) == 143
    # Usually: "SIGTERM: the job is not restarted". On a very busy machine, workers run already: "... have 5 s".
    assert "SIGTERM: the " in job.stderr.read()
