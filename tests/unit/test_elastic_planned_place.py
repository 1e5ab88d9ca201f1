# SPDX-License-Identifier: Apache-2.0
"""Rank assignment that the elastic driver plans for a worker: its variables, and that nothing treats it as final."""

import os
import shlex
import sys

import psutil
import pytest
from faultkit.membership import Driver
from testkit.launcher import horovodrun, lines_by_rank

from horovod import torch_backend
from horovod.common import place_variables, topology, torchrun_variables
from horovod.common.joining.elastic_place import worker_variables
from horovod.launcher.elastic import vocabulary as v
from horovod.launcher.elastic.end_rules import MOST_FAILURES
from horovod.launcher.elastic.places import Place
from horovod.launcher.elastic.state import planned_places
from horovod.launcher.remote.environment import that_travel
from horovod.launcher.start.worker_environment import base_environment
from horovod.tools import stacks

PLANNED = worker_variables(3, "a", Place(2, 4, 1, 3, 0, 1))


def planned(driver, birth):
    place = planned_places([birth], driver.state)[birth]
    return place.rank, place.size, place.local_rank, place.local_size, place.cross_rank, place.cross_size


def test_the_first_workers_get_the_places_that_were_planned():
    driver = Driver({"a": 2})
    driver.tell(v.Discovered({"a": 2, "b": 1}))
    places = planned_places(driver.state.workers, driver.state)
    (announced,) = driver.begin()
    assert places == announced.places
    assert [place.local_rank for place in places.values()] == [0, 1, 0], "the numbers of the slots"


def test_a_replacement_has_the_local_rank_of_its_slot_and_no_survivors_rank():
    driver = Driver({"a": 3})
    driver.begin()
    assert driver.tell(v.Ended(1, 137, "killed"))[-1] == v.Start(3, ("a", 1))
    assert planned(driver, 3) == (2, 3, 1, 3, 0, 1)


def test_a_host_that_comes_later_follows_those_that_are_there():
    driver = Driver({"a": 2}, num_proc=2)
    driver.begin()
    driver.tell(v.Discovered({"a": 2, "b": 2}))
    assert [planned(driver, birth) for birth in (2, 3)] == [(2, 4, 0, 2, 1, 2), (3, 4, 1, 2, 1, 2)]


def test_a_spare_has_a_place_of_its_own():
    driver = Driver({"a": 3}, num_proc=2, min_num_proc=2, spares=1)
    assert [planned(driver, birth)[:3] for birth in (0, 1, 2)] == [(0, 3, 0), (1, 3, 1), (2, 3, 2)]


def test_a_slot_that_rests_leaves_the_numbers_in_order():
    driver = Driver({"a": 3}, num_proc=1, min_num_proc=1, max_num_proc=1)
    for birth in range(MOST_FAILURES):
        driver.tell(v.Ended(birth, 1, "exit code 1"))
    (birth,) = driver.state.workers
    assert driver.state.workers[birth].slot == ("a", 1)
    assert planned(driver, birth) == (0, 2, 1, 2, 0, 1)


def test_only_hvd_init_makes_a_place_known():
    assert topology.discover(PLANNED) == topology.Topology(host="a")
    assert topology.discover({**PLANNED, "PMI_RANK": "1", "PMI_SIZE": "2"}).cross_size == 2
    assert torchrun_variables.job_size(PLANNED) == 1
    without_mark = {name: value for name, value in PLANNED.items() if name != place_variables.PLANNED}
    assert topology.discover(without_mark).rank == 2
    assert torchrun_variables.job_size(without_mark) == 4


def test_torch_knows_no_rank_before_hvd_init(monkeypatch):
    for name, value in PLANNED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert not torch_backend._is_launchers_world("env://?rank=2&world_size=4")
    monkeypatch.delenv(place_variables.PLANNED)
    assert torch_backend._is_launchers_world("env://?rank=2&world_size=4")


def test_a_job_that_a_worker_starts_has_places_of_its_own():
    inherited = base_environment({**PLANNED, "MINE": "1"})
    assert inherited["MINE"] == "1"
    assert not {place_variables.PLANNED, "HOROVOD_BIRTH_ID"} & set(inherited)


def test_a_process_is_named_by_what_does_not_change(monkeypatch):
    monkeypatch.setattr(psutil.Process, "environ", lambda process: PLANNED)
    assert stacks.title(os.getpid()).startswith(f"worker 3, pid {os.getpid()}: ")
    monkeypatch.setattr(psutil.Process, "environ", lambda process: {"HOROVOD_RANK": "2"})
    assert stacks.title(os.getpid()).startswith(f"rank 2, pid {os.getpid()}: ")


SHOW = "; ".join(f"echo {name}=${name}" for name in (*place_variables.NAMES, place_variables.PLANNED))
AGENT = [
    sys.executable,
    "-c",
    "import sys; from horovod.runner import agent; sys.argv[1:] = []; sys.exit(agent.main())",
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("hosts", ["localhost:2", "elsewhere:2"])
def test_workers_of_this_and_of_other_hosts_have_the_variables_when_they_start(hosts):
    """Use a command that runs on this machine instead of ssh to simulate the other host."""
    assert set(that_travel(PLANNED)) == set(PLANNED)
    flags = ["-np", "2", "--min-np", "2", "-H", hosts]
    done = horovodrun(*flags, "sh", "-c", SHOW, env={"HOROVOD_SSH_COMMAND": shlex.join(AGENT)}, limit_s=40)
    assert done.returncode == 0, done.stderr
    shown = {worker: dict(line.split("=") for line in lines) for worker, lines in lines_by_rank(done.stdout).items()}
    assert shown == {number: place_variables.planned(Place(number, 2, number, 2, 0, 1)) for number in (0, 1)}


JOB = "import horovod.numpy as hvd; hvd.init(); print('inner', hvd.rank(), hvd.size())"


@pytest.mark.timeout(60)
def test_a_job_inside_an_elastic_worker_meets_by_itself():
    inner = [sys.executable, "-m", "horovod.runner.launch", "-np", "1", sys.executable, "-c", JOB]
    done = horovodrun("-np", "1", "--min-np", "1", *inner, limit_s=40)
    assert done.returncode == 0, done.stderr
    assert "inner 0 1" in done.stdout


@pytest.mark.timeout(60)
def test_results_of_functions_without_hvd_init_are_by_worker():
    import horovod

    results = horovod.run(lambda: [os.environ[name] for name in place_variables.NAMES], num_proc=2, min_num_proc=2)
    assert results == [list(place_variables.variables(Place(number, 2, number, 2, 0, 1)).values()) for number in (0, 1)]
