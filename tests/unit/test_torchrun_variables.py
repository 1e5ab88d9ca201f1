# SPDX-License-Identifier: Apache-2.0
"""Torchrun's variables in a job: which are set, which stay the user's, and what an inner job inherits."""

import socket

from horovod.common import torchrun_variables as variables

PLACE = {"RANK": 1, "WORLD_SIZE": 4, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}
OURS = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "20001",
}


def settable(environ, **place):
    return variables.settable(variables.variables(PLACE | place, "10.0.0.1", 20001), environ)


def test_all_are_set_where_there_are_none():
    found = settable({})
    assert {name: found[name] for name in variables.NAMES} == OURS
    assert variables.place_is_ours(found)
    assert not variables.place_is_ours({})


def test_what_is_ours_is_written_anew():
    found = settable(settable({}), RANK=0, WORLD_SIZE=3)
    assert (found["RANK"], found["WORLD_SIZE"]) == ("0", "3")
    assert variables.place_is_ours(found)


def test_what_the_user_set_stays():
    environ = {"MASTER_PORT": "7", "RANK": ""}
    found = settable(environ)
    assert "MASTER_PORT" not in found
    assert "RANK" not in found
    assert found["WORLD_SIZE"] == "4"
    again = settable(environ | found)
    assert "MASTER_PORT" not in again
    assert not variables.place_is_ours(environ | found)
    # LOCAL_RANK selects a rank's GPU. The user may change it, because ranks do not need it to find each other.
    assert variables.place_is_ours(settable({}) | {"LOCAL_RANK": "7", "LOCAL_WORLD_SIZE": "9"})
    # A script may also replace a value that horovodrun set.
    changed = settable({}) | {"RANK": "3"}
    assert "RANK" not in settable(changed)
    assert "RANK" not in variables.ours(changed)


def test_an_inner_job_does_not_inherit_the_place_of_the_outer_worker():
    worker = settable({"PATH": "/bin", "MASTER_PORT": "7"}) | {"PATH": "/bin", "MASTER_PORT": "7"}
    assert variables.without_outer_place(worker) == {"PATH": "/bin", "MASTER_PORT": "7"}
    torchruns = OURS | {"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_USE_AGENT_STORE": "True", "GROUP_RANK": "0"}
    assert variables.without_outer_place(torchruns | {"PATH": "/bin"}) == {"PATH": "/bin"}


def test_a_torchrun_inside_a_job_has_the_last_word():
    worker = settable({})
    assert not variables.place_is_ours(worker | {"TORCHELASTIC_RUN_ID": "x"})
    assert "RANK" not in settable(worker | {"TORCHELASTIC_RUN_ID": "x"})


def test_the_port_is_free_and_stays_while_it_is():
    port = variables.free_port()
    environ = {"MASTER_PORT": str(port), variables.MARK: f"MASTER_PORT={port}"}
    assert variables.main_port(environ) == port
    # This port belongs to the user, and only the user's program may use it.
    assert variables.main_port({"MASTER_PORT": str(port)}) != port
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.create_server(("", port), family=family):
            assert variables.main_port(environ) != port
