# SPDX-License-Identifier: Apache-2.0
"""Fault 39: a rank raises and takes seconds to end. It is the first failure, and the others get its error at once."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from testkit.launcher import horovodrun, lines_by_rank, python
from testkit.speed import patience

import horovod

PROGRAMS = Path(__file__).parent / "programs"
LINGER_S = 2.5  # longer than the launcher waits for a first failure other than a rank that lost a peer
GRACE_S = 5.0
# Time for an elastic job to continue with a replacement, far less than the process that raised may take to end.
GOES_ON_S = 15.0
SOON_S = 2.0  # "at once" on a busy machine; without the reports it would take LINGER_S

BOOM = "rank 1 raised ValueError: boom"
# Ways in which rank 1 ends, each with the reason that the others receive and the exit code.
WAYS = {
    "a handler of atexit": (BOOM, 1),
    "a joined thread": (BOOM, 1),
    "another hook": (BOOM, 1),
    "beside a thread in a collective": (BOOM, 1),
    "sys.exit": ("rank 1 raised SystemExit: 3", 3),
    "control characters": (r"rank 1 raised ValueError: \x1b[31mred\r\n\x00" + 166 * "x" + "...", 1),
}


def leave(way, ranks=2, linger_s=LINGER_S):
    """Run a job in which rank 1 ends. Return its output and the reports of the ranks."""
    return job_of("leaving.py", way, str(linger_s), ranks=ranks)


def job_of(program, *words, ranks=2):
    done = horovodrun("-np", str(ranks), *python("")[:1], str(PROGRAMS / program), *words, limit_s=60)
    return done, [json.loads(line) for lines in lines_by_rank(done.stdout).values() for line in lines]


def check_others(reports, ranks, text):
    began = next(one["at"] for one in reports if "way" in one)
    others = [one for one in reports if "error" in one]
    assert sorted(one["rank"] for one in others) == [rank for rank in range(ranks) if rank != 1]
    assert {(one["error"], one["lost"]) for one in others} == {(text, 1)}
    assert all(one["at"] - began < SOON_S for one in others), reports


@pytest.mark.promise
@pytest.mark.parametrize("way", WAYS)
def test_fault_39_the_rank_that_raised_is_the_first_failure(way):
    text, code = WAYS[way]
    done, reports = leave(way)
    check_others(reports, 2, text)
    assert done.returncode == code
    first = rf"rank 1 \(host localhost, pid \d+\) failed first: exit code {code}$"
    assert re.search(first, done.stderr, re.M), done.stderr
    block = done.stderr.split("failed first")[1]
    assert text.partition("raised ")[2].partition("\\")[0] in block
    assert "tracker" not in block
    assert [one["thread"] for one in reports if "thread" in one] == ([text] if "beside" in way else [])


@pytest.mark.promise
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed here")
def test_fault_39_the_rank_that_raised_in_a_program_of_torch_distributed_alone():
    """Check that a group that was destroyed earlier does not make this rank's failure a consequence of another."""
    done, reports = job_of("leaving_distributed.py", str(LINGER_S))
    errors = [one["error"] for one in reports if "error" in one]
    assert [BOOM in error for error in errors] == [True], done.stderr
    check_others(reports, 2, errors[0])
    assert done.returncode == 1
    assert re.search(r"rank 1 \(host localhost, pid \d+\) failed first: exit code 1$", done.stderr, re.M), done.stderr
    block = done.stderr.split("failed first")[1]
    frame = r"leaving_distributed.py:\d+, in <module>\n +raise ValueError.*\n +ValueError: boom\n"
    assert re.search(frame, block), block


@pytest.mark.promise
@pytest.mark.parametrize("way", ["an early handler of atexit", "in a process set"])
def test_fault_39_one_of_four_that_does_not_end_in_the_grace(way):
    """Let another rank end with an error that does not show that it only lost a peer."""
    done, reports = leave(way, 4, linger_s=60)
    check_others(reports, 4, BOOM)
    assert done.returncode == 1
    first = r"rank 1 \(host localhost, pid \d+\) failed first: it raised ValueError: boom, and its process did not end$"
    assert re.search(first, done.stderr, re.M), done.stderr
    assert "ValueError: boom" in done.stderr.split("failed first")[1]


def test_what_only_looks_like_the_end_of_a_rank_disturbs_nobody():
    done, reports = leave("harmless")
    assert (done.returncode, reports) == (0, [])
    assert "failed first" not in done.stderr


@pytest.mark.promise
@pytest.mark.parametrize("linger_s", [LINGER_S, 120])
def test_an_elastic_job_goes_on_and_its_other_workers_know_the_error(linger_s):
    words = ["-np", "2", "--min-np", "2", "--max-np", "2", "--blacklist-cooldown-range", "1", "2"]
    program = [str(PROGRAMS / "leaving_elastic.py"), str(linger_s)]
    done = horovodrun(*words, *python("")[:1], *program, limit_s=60)
    reports = [json.loads(line.partition(":")[2]) for line in done.stdout.splitlines() if "{" in line]
    assert done.returncode == 0, done.stderr
    began = next(one["at"] for one in reports if "raises" in one)
    (error,) = [one for one in reports if "error" in one]
    assert (error["birth"], error["error"]) == ("0", BOOM)
    assert error["at"] - began < SOON_S
    ends = [one for one in reports if "done" in one]
    assert [one["done"] for one in ends] == [2, 2]
    assert all(one["at"] - began < patience(GOES_ON_S) for one in ends), reports
    how = "exit code 1" if linger_s < GRACE_S else "its process did not end"
    assert re.search(rf"left: rank 1 \(worker 1 on localhost\): it raised ValueError: boom.*{how}", done.stderr)


def test_horovod_run_names_the_rank_whose_function_raised():
    def train(linger_s):
        import atexit
        import time

        import numpy as np

        import horovod.numpy as hvd

        hvd.init()
        hvd.allreduce(np.ones(2), name="all are here")
        if hvd.rank() == 1:
            atexit.register(time.sleep, linger_s)
            raise ValueError("boom")
        hvd.allreduce(np.ones(2), name="never")

    with pytest.raises(RuntimeError, match="rank 1 .*failed first") as raised:
        horovod.run(train, args=[LINGER_S], num_proc=2)
    assert str(raised.value).rstrip().endswith("ValueError: boom")
