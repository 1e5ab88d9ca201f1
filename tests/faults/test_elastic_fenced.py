# SPDX-License-Identifier: Apache-2.0
"""Workers of elastic jobs that are frozen, late, or lose their launcher."""

import signal

import psutil
import pytest
from faultkit.elastic import ElasticJob, of_rank
from faultkit.newcomers import hold_back, let_come
from testkit.awaiting import await_that
from testkit.families import is_alive, living

from horovod.common.rendezvous.client import Connection, DismissedError, MeetAgainError
from horovod.common.topology import SECRET_VARIABLE, decode_secret

SILENCE_S, FENCE_S = 10, 1
SHORT_SILENCE_S = 2
SLACK_S = 6  # extra time for a busy machine


def rendezvous_of(worker: psutil.Process) -> Connection:
    env = worker.environ()
    port = int(env["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    return Connection.open(env["HOROVOD_GLOO_RENDEZVOUS_ADDR"], port, decode_secret(env[SECRET_VARIABLE]), 10)


@pytest.mark.promise
@pytest.mark.timeout(150)
def test_faults_3_14_and_6_a_frozen_worker_a_late_one_and_a_killed_launcher(tmp_path):
    hold_back(tmp_path, 3)
    with ElasticJob("numpy", tmp_path, 3, "--min-np", "2") as job:
        first = job.stepped(0, 3)
        frozen = psutil.Process(of_rank(1, first)["pid"])
        stopped = job.kill(of_rank(1, first), signal.SIGSTOP)
        second = job.stepped(1, 2)
        assert max(one["at"] for one in second.values()) - stopped < SILENCE_S + FENCE_S + SLACK_S
        assert not is_alive(frozen), "a frozen worker shares memory with the others: it must not thaw"
        assert {one["pid"] for one in second.values()} == {first[0]["pid"], first[2]["pid"]}
        let_come(tmp_path, 3)
        third = job.stepped(2, 3)
        assert set(third) == {0, 2, 3}

        # Its birth id and an old generation are used again.
        survivor = psutil.Process(third[0]["pid"])
        with (
            rendezvous_of(survivor) as late,
            pytest.raises(DismissedError, match="does not belong to the job any more"),
        ):
            late.ask_for_place(1, 10)
        with rendezvous_of(survivor) as late, pytest.raises(MeetAgainError, match="rank 1 has ended"):
            late.meet(1, 3, 0, {"host": "localhost"}, 10)
        await_that(lambda: "worker 1 came too late, and was sent away" in job.printed())

        family = psutil.Process(job.processes[0].pid).children(recursive=True)
        job.processes[0].kill()
        assert not living(family, limit_s=5), "workers must not outlive their launcher"
        shown = job.printed()
    assert "left: rank 1 (worker 1 on localhost): the others heard nothing more of it" in shown


@pytest.mark.timeout(150)
def test_nobody_waits_long_for_a_worker_that_freezes_in_init_or_while_the_others_have_lost_another(tmp_path):
    env = {"HOROVOD_PEER_TIMEOUT_SECONDS": str(SHORT_SILENCE_S), "TEST_FREEZES_IN_INIT": "3"}
    hold_back(tmp_path, 3, 4, 5, 6)
    with ElasticJob("numpy", tmp_path, 3, "--min-np", "1", env=env) as job:
        first = job.stepped(0, 3)
        job.kill(first[2])
        second = job.stepped(1, 2)
        # Its replacement, worker 3, gets a rank in generation 2 and freezes before it takes part in the rendezvous.
        let_come(tmp_path, 3)
        third = job.stepped(3, 2)
        assert set(third) == {0, 1}
        (frozen,) = [one for one in job.reports.all if one["event"] == "freezes"]
        assert max(one["at"] for one in third.values()) - frozen["at"] < SHORT_SILENCE_S + FENCE_S + SLACK_S
        job.await_printed("left: rank 2 (worker 3 on localhost): the others heard nothing more of it")
        assert third[0]["steps"] >= second[0]["steps"]
        let_come(tmp_path, 4)
        fourth = job.stepped_with(3, third)  # with another replacement
        assert set(fourth) == {0, 1, 4}

        # The survivor loses only worker 1, so it would not notice that worker 4 is frozen.
        job.kill(fourth[4], signal.SIGSTOP)
        killed = job.kill(fourth[1])
        fifth = job.stepped_with(1, fourth)
        assert set(fifth) == {0}
        assert fifth[0]["at"] - killed < 3 * SHORT_SILENCE_S + FENCE_S + 1 + SLACK_S
        job.await_printed("(worker 4 on localhost): the others heard nothing more of it")
        for birth in (5, 6):
            let_come(tmp_path, birth)
        assert set(job.stepped_with(3, fifth)) == {0, 5, 6}
        job.finish(3)
