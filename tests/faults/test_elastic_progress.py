# SPDX-License-Identifier: Apache-2.0
"""Fault 36: whatever happens to a worker before the first commit, training resumes from the checkpoint, or stops."""

import os
import random
import signal

import numpy as np
import pytest
from faultkit.forked import ForkedJob, Zygote
from faultkit.jobs import program
from faultkit.newcomers import hold_back
from faultkit.reports import VARIABLE, Reports
from testkit.launcher import horovodrun
from testkit.places import ROOT, TESTS, python_path

from horovod.common import checkpoint_file
from horovod.common.checkpoint_folder import lineage_of, list_files, path_of
from horovod.common.lineage import CommitId

LINEAGE = "00112233445566aa"
KILLED = 128 + signal.SIGKILL
STEPS, LAST_STEP = 5, 8  # in the initial checkpoint, and at the end
COUNT = os.environ.get(
    "HOROVOD_TEST_LINES", "20"
)  # number of lines at which rank 0 is killed, each in a separate job, or "all"
SEED = int(os.environ.get("HOROVOD_TEST_SEED", random.SystemRandom().randrange(1 << 32)))


@pytest.fixture
def zygote():
    running = Zygote("elastic_lines")
    yield running
    running.close()


def write_checkpoint(folder, steps=STEPS, number=1, commits=None):
    folder.mkdir(parents=True, exist_ok=True)
    values = {"weights": np.full(4, float(steps)), "step": steps}
    commit = CommitId(LINEAGE, steps if commits is None else commits)
    checkpoint_file.write(path_of(folder, number, LINEAGE), {"values": values}, commit)


class Job(ForkedJob):
    """A job of two workers, one on each of the hosts a and b. Worker 0 is killed at a line, or not at all with -1."""

    def __init__(self, zygote, folder, line=-1, **env):
        super().__init__(zygote, [str(folder), str(line)], {name: str(value) for name, value in env.items()})
        self.outcome = self.run({"a": 1, "b": 1})
        self.what = f"exit code {self.outcome.exit_code}\n{self.said}\n{self.reports}"

    def reported(self, event):
        return [one for one in self.reports if one["event"] == event]

    def check_went_on(self, folder, steps=STEPS):
        """Check that training continued from the checkpoint with `steps` steps to the last step."""
        assert self.outcome.exit_code == 0, self.what
        begins, done = self.reported("begins"), self.reported("done")
        assert begins, self.what
        assert all(one["step"] == one["weight"] >= steps for one in begins), self.what
        assert done, self.what
        assert all(one["step"] == one["weight"] == LAST_STEP for one in done), self.what
        files = list_files(folder)
        assert checkpoint_file.read(files[0])["values"]["step"] == LAST_STEP, self.what
        assert checkpoint_file.describe(files[0]).commit == CommitId(LINEAGE, LAST_STEP), self.what
        assert {lineage_of(path) for path in files} == {LINEAGE}, self.what

    def check_ended(self, *words):
        """Check that the job ended with an error that contains these words on every rank, without a replacement."""
        assert self.outcome.exit_code == 1, self.what
        assert not self.reported("done"), self.what
        failed = self.reported("failed")
        assert len(failed) == 2, self.what
        assert {one["text"] for one in failed} == {failed[0]["text"]}, self.what
        for text in (failed[0]["text"], self.outcome.text):
            assert all(str(word) in text for word in words), self.what


@pytest.mark.timeout(3000)
def test_fault_36_rank_0_is_killed_at_any_line_before_the_first_commit(zygote, tmp_path):
    write_checkpoint(tmp_path / "counted")
    whole = Job(zygote, tmp_path / "counted", 0)
    whole.check_went_on(tmp_path / "counted")
    every = range(1, whole.reported("committed")[0]["lines"] + 1)
    chosen = every if COUNT == "all" else sorted(random.Random(SEED).sample(every, int(COUNT)))
    print(f"\n{len(every)} lines; HOROVOD_TEST_SEED={SEED}")
    for line in chosen:
        folder = tmp_path / str(line)
        write_checkpoint(folder)
        job = Job(zygote, folder, line)
        assert job.exit_codes[0] == KILLED, f"line {line}: {job.what}"
        job.check_went_on(folder)


def test_rank_0_raises_before_the_first_sync(zygote, tmp_path):
    """Check an error of the program, such as too little memory for its data, unrelated to the checkpoint."""
    write_checkpoint(tmp_path / "checkpoints")
    job = Job(zygote, tmp_path / "checkpoints", TEST_RAISES=1)
    assert "exit code 1" in str(job.said), job.what
    job.check_went_on(tmp_path / "checkpoints")


def test_no_worker_without_the_folder_starts_from_nothing(zygote, tmp_path):
    """Check that no worker starts from nothing if it does not see the checkpoint that another worker sees.

    Only host a sees the checkpoint. Rank 0 on host a is killed after it has reported the checkpoint to the driver and
    before it sends the state to rank 1. Its replacement sees the checkpoint too, and would become rank 0 if it came in
    time.
    """
    here, elsewhere = tmp_path / "a" / "checkpoints", tmp_path / "b" / "checkpoints"
    folders = {"TEST_FOLDER_OF_a": here, "TEST_FOLDER_OF_b": elsewhere}
    write_checkpoint(here)
    whole = Job(zygote, tmp_path / "shared", 0, **folders)
    whole.check_went_on(here)
    assert not elsewhere.exists()
    last = whole.reported("committed")[0]["before_sync"]
    files = list_files(here)
    hold_back(tmp_path, 2)
    for line in random.Random(SEED).sample(range(last - 40, last), 2):
        job = Job(zygote, tmp_path / "shared", line, **folders)
        assert "rank 0 finds none in" in job.what, job.what
        assert str(files[0]) in job.outcome.text, job.what
        assert (job.outcome.exit_code, job.reported("begins"), job.reported("done")) == (1, [], []), job.what
        assert list_files(elsewhere) == []
        assert list_files(here) == files


def test_a_newcomer_that_sees_another_training_ends_the_job(zygote, tmp_path):
    """Kill rank 0, on the only host that sees the checkpoint, before another process knows of the checkpoint."""
    here, elsewhere = tmp_path / "a" / "checkpoints", tmp_path / "b" / "checkpoints"
    write_checkpoint(here, commits=1_000_000)
    hold_back(tmp_path, 2)
    env = {"TEST_FOLDER_OF_a": here, "TEST_FOLDER_OF_b": elsewhere, "TEST_SIZE": 2, "TEST_LETS_COME": 2}
    job = Job(zygote, tmp_path / "shared", -2, **env)
    assert [one["step"] for one in job.reported("begins")] == [0]
    job.check_ended(f"rank 1 sees the checkpoint {list_files(here)[0]} with 1000000 commits", "none of this training")
    assert len(list_files(here)) == 1


def test_rank_0_without_the_folder_that_others_see_ends_the_job(zygote, tmp_path):
    here, elsewhere = tmp_path / "a" / "checkpoints", tmp_path / "b" / "checkpoints"
    write_checkpoint(elsewhere)
    job = Job(zygote, tmp_path / "shared", TEST_FOLDER_OF_a=here, TEST_FOLDER_OF_b=elsewhere)
    job.check_ended(list_files(elsewhere)[0], "rank 1 reports it", f"rank 0 finds none in {here}")
    assert job.started == 2


def test_a_checkpoint_folder_that_is_a_file_ends_the_job(zygote, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    job = Job(zygote, tmp_path / "file")
    job.check_ended(f"{tmp_path / 'file'} is a file, not a directory")
    assert job.started == 2
    assert (tmp_path / "file").read_text() == "not a folder"


def test_two_states_of_one_program_are_not_mixed_up(zygote, tmp_path):
    """Kill rank 0 between its first state and the first sync of the second, whose checkpoint is newer."""
    write_checkpoint(tmp_path / "second", 6, number=9)
    first = tmp_path / "first"
    write_checkpoint(first)
    hold_back(tmp_path, 2, 3)
    whole = Job(zygote, first, 0, TEST_STATES=2)
    whole.check_went_on(tmp_path / "second")
    last = whole.reported("committed")[0]["lines"]
    for line in random.Random(SEED).sample(range(1, last + 1), 3):
        for path in list_files(tmp_path / "second"):
            path.unlink()
        write_checkpoint(tmp_path / "second", 6, number=9)
        job = Job(zygote, first, line, TEST_STATES=2)
        assert job.exit_codes[0] == KILLED, f"line {line}: {job.what}"
        job.check_went_on(tmp_path / "second")
        assert [one["step"] for one in job.reported("begins")].count(6) >= 1, job.what
        first_commit = checkpoint_file.describe(list_files(first)[0]).commit
        assert first_commit.commits == LAST_STEP


def test_a_job_whose_checkpoints_are_all_broken_ends_and_names_them(tmp_path):
    """Check the launcher's result: no replacement, nothing deleted, and an exit code other than 0."""
    folder = tmp_path / "checkpoints"
    for number in (1, 2, 3):
        write_checkpoint(folder, number=number)
    files = list_files(folder)
    for path in files:
        path.write_bytes(path.read_bytes()[:-1])
    reports = Reports()
    env = {"PYTHONPATH": python_path(ROOT, TESTS), VARIABLE: reports.path, "OMP_NUM_THREADS": "1"}
    done = horovodrun("-np", "2", "--min-np", "1", *program("elastic_lines", str(folder), "-1"), env=env, limit_s=60)
    reports.close()
    shown = done.stdout + done.stderr
    assert done.returncode == 1, shown
    ended = next(line for line in shown.splitlines() if "horovodrun: the elastic job is ended" in line)
    assert f"rank 0 cannot load a checkpoint: None of the 3 checkpoints in {folder} is usable" in ended
    assert all(f"{path.name}: it has" in ended for path in files), ended
    assert "generation 1" not in shown
    assert list_files(folder) == files
