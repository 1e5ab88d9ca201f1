# SPDX-License-Identifier: Apache-2.0
"""When init_process_group() uses horovodrun's rendezvous or torch's own, and which processes it warns."""

import pytest

pytest.importorskip("torch")

from horovod import torch_backend
from horovod.common import torchrun_variables, user_warnings
from horovod.common.exceptions import HorovodWarning

PLACE = {"RANK": 1, "WORLD_SIZE": 4, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 4}


@pytest.fixture
def worker(monkeypatch):
    """Set the environment of a worker of horovodrun."""
    for name in (*torchrun_variables.NAMES, torchrun_variables.MARK, "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    wanted = torchrun_variables.variables(PLACE, "127.0.0.1", 20001)
    ours = torchrun_variables.settable(wanted, {}) | {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4"}
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(user_warnings, "_said", set())
    return monkeypatch


@pytest.mark.parametrize("url", ["env://", "env://?rank=1&world_size=4", "env://?world_size=4"])
def test_all_ranks_meet_at_the_launcher(worker, url):
    assert torch_backend._is_launchers_world(url)
    torch_backend._warn_of_group_alone(url)


@pytest.mark.parametrize("url", ["env://?rank=0&world_size=1", "env://?rank=0&world_size=4", "env://?world_size=2"])
def test_whoever_asks_for_another_group_gets_it(worker, url):
    assert not torch_backend._is_launchers_world(url)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"])
def test_what_the_user_or_torchrun_has_set_counts(worker, name):
    worker.setenv(name, "7")
    assert not torch_backend._is_launchers_world("env://")


def test_a_group_of_one_is_told_once(worker):
    with pytest.warns(HorovodWarning, match="a group of 1 process, but this job has 4 ranks"):
        torch_backend._warn_of_group_alone("env://?rank=0&world_size=1")
    torch_backend._warn_of_group_alone("env://?rank=0&world_size=1")


def test_torchrun_inside_a_job_may_start_one_process(worker):
    worker.setenv("TORCHELASTIC_RUN_ID", "x")
    worker.setenv("WORLD_SIZE", "1")
    torch_backend._warn_of_group_alone("env://")
