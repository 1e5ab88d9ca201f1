# SPDX-License-Identifier: Apache-2.0
"""Names that other programs import from the launcher, and the default of -np in a batch job."""

import argparse
import importlib

import pytest

from horovod.launcher.start.allocation import default_processes
from horovod.runner import launch
from horovod.runner.common.util import env, timeout
from horovod.runner.util.lsf import LSFUtils
from horovod.runner.util.threads import in_thread

NAMES = """
CACHE_FOLDER CACHE_STALENESS_THRESHOLD_MINUTES SSH_ATTEMPTS SSH_CONNECT_TIMEOUT_S ccl_built check_build
ddl_built extension_available gloo_built hosts is_gloo_used lsf make_check_build_action make_deprecated_bool_action
make_nic_action make_override_action make_override_bool_action make_override_false_action make_override_true_action
mpi_built nccl_built parse_args run_commandline run_controller secret threads timeout
"""


def test_names_that_programs_import_from_the_launcher_are_there():
    assert [name for name in NAMES.split() if not hasattr(launch, name)] == []
    assert not hasattr(launch, "nonsense")
    assert launch.secret is importlib.import_module("horovod.runner.common.util.secret")


def chosen(monkeypatch, asked, gloo, mpi, lsf_job=False, jsrun=False):
    monkeypatch.setattr(launch, "gloo_built", lambda verbose=False: gloo)
    monkeypatch.setattr(launch, "mpi_built", lambda verbose=False: mpi)
    monkeypatch.setattr(launch, "is_jsrun_installed", lambda: jsrun)
    monkeypatch.setattr(launch.lsf.LSFUtils, "using_lsf", staticmethod(lambda: lsf_job))
    use = {name: name == asked for name in ("gloo", "mpi", "jsrun")}
    by_gloo = launch.is_gloo_used(use["gloo"], use["mpi"], use["jsrun"])
    found = launch.run_controller(
        *(use["gloo"], lambda: "gloo"), *(use["mpi"], lambda: "mpi"), *(use["jsrun"], lambda: "jsrun"), verbosity=2
    )
    assert by_gloo == (found == "gloo")
    return found


@pytest.mark.parametrize(
    ("asked", "built", "expected"),
    [
        ("gloo", {"gloo": True, "mpi": True}, "gloo"),
        ("mpi", {"gloo": True, "mpi": True}, "mpi"),
        ("mpi", {"gloo": True, "mpi": True, "lsf_job": True, "jsrun": True}, "mpi"),
        ("jsrun", {"gloo": True, "mpi": True, "lsf_job": True}, "jsrun"),
        (None, {"gloo": True, "mpi": False}, "gloo"),
        (None, {"gloo": True, "mpi": True}, "mpi"),
        (None, {"gloo": False, "mpi": True}, "mpi"),
        (None, {"gloo": False, "mpi": True, "lsf_job": True, "jsrun": True}, "jsrun"),
        (None, {"gloo": False, "mpi": True, "lsf_job": True, "jsrun": False}, "mpi"),
    ],
)
def test_run_controller_asks_what_is_built_when_it_is_called(monkeypatch, asked, built, expected):
    assert chosen(monkeypatch, asked, **built) == expected


@pytest.mark.parametrize(
    ("asked", "built", "text"),
    [
        ("gloo", {"gloo": False, "mpi": True}, "^Gloo support has not been built"),
        ("mpi", {"gloo": True, "mpi": False}, "^MPI support has not been built: mpi4py is not installed"),
        ("jsrun", {"gloo": True, "mpi": False, "lsf_job": True}, "^MPI support has not been built"),
        ("jsrun", {"gloo": True, "mpi": True}, "^jsrun works only inside an LSF job"),
        (None, {"gloo": False, "mpi": False}, "^Neither MPI nor Gloo support has been built"),
    ],
)
def test_run_controller_refuses_what_is_not_built(monkeypatch, asked, built, text):
    with pytest.raises(ValueError, match=text):
        chosen(monkeypatch, asked, **built)


def test_actions_note_what_was_given():
    given: set[str] = set()
    parser = argparse.ArgumentParser()
    parser.add_argument("--cycle", type=float, action=launch.make_override_action(given))
    parser.add_argument("--on", dest="on", action=launch.make_override_true_action(given))
    parser.add_argument("--off", dest="on", action=launch.make_override_false_action(given))
    parser.add_argument("--old", action=launch.make_deprecated_bool_action(given, True, "--new", "v2"))
    parser.add_argument("--unused", action=launch.make_override_action(given))
    assert vars(parser.parse_args(["--cycle", "2", "--on"])) | {"old": None} == {
        "cycle": 2.0,
        "on": True,
        "old": None,
        "unused": None,
    }
    assert given == {"cycle", "on"}
    assert parser.parse_args(["--on", "--off"]).on is False
    with pytest.warns(DeprecationWarning, match="--old is deprecated and will be removed in v2: use --new"):
        assert parser.parse_args(["--old"]).old is True


def test_check_build_makes_the_number_of_processes_optional():
    parser = argparse.ArgumentParser()
    number = parser.add_argument("-np", type=int, required=True)
    parser.add_argument("-cb", dest="check_build", action=launch.make_check_build_action(number))
    assert parser.parse_args(["-cb"]).check_build is True


@pytest.mark.parametrize(
    ("environ", "processes"),
    [
        ({}, None),
        ({"SLURM_NTASKS": "4"}, None),
        ({"SLURM_JOB_ID": "7"}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_JOB_NUM_NODES": "1"}, 4),
        ({"LSB_JOBID": "7", "LSB_DJOB_NUMPROC": "3", "LSB_MCPU_HOSTS": "h 3"}, 3),
        ({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "h 2"}, 2),
        ({"LSB_JOBID": "7"}, None),
    ],
)
def test_a_batch_system_gives_the_number_of_processes(environ, processes):
    assert default_processes(environ) == processes


def test_an_allocation_of_several_hosts_is_not_silently_cut():
    assert default_processes({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "a 4 b 4"}) == 8


def test_np_may_be_left_out_inside_a_batch_job_only(monkeypatch, capsys):
    for name in ("SLURM_JOB_ID", "SLURM_NTASKS", "LSB_JOBID", "CSM_ALLOCATION_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit):
        launch.parse_args(["python", "x.py"])
    assert "-np (--num-proc) is required outside LSF and Slurm" in capsys.readouterr().err
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_NTASKS", "3")
    assert launch.parse_args(["python", "x.py"]).num_proc == 3
    assert launch.parse_args(["-np", "2", "python", "x.py"]).num_proc == 2
    monkeypatch.setenv("SLURM_NTASKS", "many")
    with pytest.raises(ValueError, match="SLURM_NTASKS='many' is not valid: expected an integer from 1 to 1048576"):
        launch.parse_args(["python", "x.py"])


def test_small_helpers_under_their_old_paths(monkeypatch):
    monkeypatch.setenv("LSB_JOBID", "7")
    assert LSFUtils.using_lsf()
    for name in ("HOROVOD_RANK", "HOROVOD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert env.get_env_rank_and_size() == (0, 1)
    monkeypatch.setenv("PMI_RANK", "2")
    monkeypatch.setenv("PMI_SIZE", "3")
    assert env.get_env_rank_and_size() == (2, 3)
    over = timeout.Timeout(-1, "{activity} took more than {timeout} s")
    with pytest.raises(timeout.TimeoutException, match="waiting took more than -1 s"):
        over.check_time_out_for("waiting")
    assert over.timed_out()
    assert over.remaining() == 0
    ran: list[int] = []
    in_thread(ran.append, (1,)).join()
    in_thread(lambda: 1 / 0, silent=True).join()
    assert ran == [1]
