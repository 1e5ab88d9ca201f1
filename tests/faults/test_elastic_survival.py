# SPDX-License-Identifier: Apache-2.0
"""What survives the loss of workers: process sets, timeline and tuning. Checkpoints survive the loss of all workers."""

import json

import pytest
from faultkit.newcomers import hold_back, let_come
from faultkit.stateful import StatefulJob
from testkit.awaiting import await_that

from horovod.common import checkpoint_file
from horovod.common.checkpoint import list_files

TUNING = {
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "1",
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "4",
}


def sets(reports):
    """Return the birth ids in both sets, on which all of their members must agree."""
    found = []
    for name in ("pair", "last"):
        seen = [one[name] for one in reports.values() if one[name] is not None]
        assert all(one == seen[0] for one in seen)
        found.append(set(seen[0]) if seen else set())
    return found


def commits(path):
    """Return the durations of the commits in a timeline."""
    events = json.loads(path.read_text())
    return [event["dur"] for event in events if event.get("name") == "COMMIT"]


def await_on_disk(folder, steps, limit_s=30):
    """Wait until a checkpoint holds `steps` steps. Commits that come while one is being written are skipped."""
    await_that(
        lambda: any(read_steps(path) >= steps for path in list_files(folder)), limit_s, lambda: list_files(folder)
    )


def read_steps(path):
    """Return the steps of a checkpoint, or -1 if the job has deleted the file, because it keeps only the newest."""
    try:
        return checkpoint_file.read(path)["values"]["steps"]
    except FileNotFoundError:
        return -1


@pytest.mark.timeout(180)
def test_sets_timeline_tuning_and_checkpoints_survive(tmp_path):
    folder = tmp_path / "checkpoints"
    env = {"HOROVOD_TIMELINE": str(tmp_path / "trace.json"), **TUNING}
    hold_back(tmp_path, 3, 4)
    with StatefulJob("elastic_survival", tmp_path, 3, str(folder), env=env) as job:
        first = job.stepped(0, 3)
        assert sets(first) == [{0, 1}, {2}]
        tuned = job.await_report("tuned", birth=0)["tuned"]

        job.kill(first[2])  # the only member of a set
        second = job.stepped(1, 2)
        assert sets(second) == [{0, 1}, set()]
        assert {one["sizes"][1] for one in second.values()} == {0}
        text = "made with ranks [2] is empty: workers [2] have left the job, and nobody has come in their place"
        assert all(text in one["refusal"] for one in second.values())

        let_come(tmp_path, 3)
        third = job.stepped(2, 3)  # with a replacement that takes its predecessor's rank
        assert sets(third) == [{0, 1}, {3}]
        job.kill(third[0])  # rank 0, which wrote the checkpoints
        assert sets(job.stepped(3, 2)) == [{1}, {3}]
        let_come(tmp_path, 4)
        last = job.stepped(4, 3)
        assert sets(last) == [{1, 4}, {3}]

        later = [*second.values(), *third.values(), *last.values()]
        assert {one["autotune"] for one in later} == {"off"}  # the tuned values are kept
        assert all(one["tuned"] == tuned for one in later)
        job.await_report("committed", birth=1, generation=4)
        await_on_disk(folder, third[1]["steps"])
        job.kill(*last.values())
        assert job.wait(limit_s=60) != [0]

    assert commits(tmp_path / "trace.json")
    for generation in (1, 3):  # the writers of generations 2 and 4 were killed, perhaps before they wrote
        assert commits(tmp_path / f"trace.generation-{generation}.json")
    assert (tmp_path / "trace.generation-2.json").exists()
    assert not [path for path in folder.iterdir() if path.suffix != ".hvd" and not path.name.endswith(".tmp")]

    with StatefulJob("elastic_survival", tmp_path, 4, str(folder)) as again:  # with another number of workers
        after = again.stepped(0, 4)
        reports = {one["birth"]: one["path"] for one in again.reports.all if one["event"] == "resumed"}
        assert reports[0] is not None
        assert {reports[birth] for birth in (1, 2, 3)} == {None}
        assert {one["steps"] for one in after.values()} == {after[0]["steps"]}
        assert after[0]["steps"] > third[1]["steps"]
        # Each step adds a gradient of 1, so a partly loaded state would differ.
        assert after[0]["weight"] == after[0]["steps"]
        done = again.finish(4)
    newest, _ = list_files(folder)
    # Training ends only after the last checkpoint is written.
    assert checkpoint_file.read(newest)["values"]["steps"] == done[0]["steps"]
