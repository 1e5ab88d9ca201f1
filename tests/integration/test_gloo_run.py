# SPDX-License-Identifier: Apache-2.0
"""Programs that start ranks themselves with functions of horovod.runner.gloo_run."""

import contextlib
import os
import sys

import pytest
from testkit.processes import Process, wait_for_all

from horovod.common.rendezvous.client import Connection, RendezvousError
from horovod.common.topology import SECRET_VARIABLE
from horovod.runner import gloo_run
from horovod.runner.http import http_server

LIMIT_S = 30
RANK = """
import numpy as np
import horovod.numpy as hvd

hvd.init()
total = hvd.allreduce(np.full(2, hvd.rank() + 1.0), op=hvd.Sum, name="x")[0]
print(hvd.rank(), hvd.size(), hvd.local_rank(), total)
"""


def test_ranks_meet_at_a_rendezvous_server_of_the_program():
    slots = gloo_run.get_host_assignments(gloo_run.parse_hosts("localhost:2"), 2)
    server = gloo_run.RendezvousServer(verbose=0)
    port = server.start()
    try:
        server.init(slots)
        common = gloo_run.create_run_env_vars("127.0.0.1", ["lo"], port)
        with contextlib.ExitStack() as ranks:
            started = [
                ranks.enter_context(
                    Process([sys.executable, "-c", RANK], {**common, **gloo_run.create_slot_env_vars(slot)})
                )
                for slot in slots
            ]
            assert wait_for_all(started, limit_s=LIMIT_S) == [0, 0], [rank.account() for rank in started]
            assert [rank.printed() for rank in started] == ["0 2 0 3.0\n", "1 2 1 3.0\n"]
    finally:
        server.stop()


def test_the_secret_is_that_of_the_server_at_the_port_and_nobody_comes_without_it():
    one, other = gloo_run.RendezvousServer(), gloo_run.RendezvousServer()
    ports = [one.start(), other.start()]
    with pytest.raises(RuntimeError, match=f"was started already, at port {ports[0]}"):
        one.start()
    secrets = [gloo_run.create_run_env_vars("h", ["lo"], port)[SECRET_VARIABLE] for port in ports]
    assert secrets[0] != secrets[1]
    with pytest.raises(RendezvousError):
        Connection.open("127.0.0.1", ports[0], os.urandom(32), LIMIT_S)
    for server in (one, other, one):
        server.stop()
    assert SECRET_VARIABLE not in gloo_run.create_run_env_vars("h", ["lo"], ports[0])


def test_what_a_rendezvous_server_cannot_use_is_refused():
    server = http_server.RendezvousServer()
    with pytest.raises(TypeError, match="takes what create_rendezvous_handler.driver. returns, not <class 'dict'>"):
        server.start(dict)
    slots = gloo_run.get_host_assignments(gloo_run.parse_hosts("a:2,b:1"), 3)
    server.init(slots)
    assert server.plan == slots
    for plan in (slots[1:], [*slots, slots[0]]):
        with pytest.raises(ValueError, match="the slots must have the ranks 0 to size - 1"):
            server.init(plan)
