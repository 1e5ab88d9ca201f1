# SPDX-License-Identifier: Apache-2.0
"""Faults 24, 25 and 27 on the open ports of a running job: the job continues, and no forged message is accepted."""

import os
import signal

import psutil
import pytest
from faultkit.holdings import open_files
from faultkit.jobs import LaunchedJob, program
from faultkit.strangers import Dripping, crowd, echo, garbage, rush, speak

MEBIBYTE = 1 << 20
WAITED_S = 3  # a rank that waited for a stranger would wait longer, until the stranger is dropped


def listening(pids: list[int]) -> set[int]:
    """Return the TCP ports on which these processes listen."""
    ports = set()
    for pid in pids:
        for connection in psutil.Process(pid).net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                ports.add(connection.laddr.port)
    return ports


@pytest.mark.parametrize("env", [{}, {"HOROVOD_SHARED_MEMORY": "0"}], ids=["shared memory", "tcp"])
def test_faults_24_25_and_27_strangers_at_every_port(env, tmp_path):
    bomb = tmp_path / "loaded"
    with LaunchedJob(program("loop"), 2, env=env) as job:
        ready = job.ready()
        pids = [report["pid"] for report in ready.values()]
        ports = sorted(listening([*pids, job.processes[0].pid]))
        assert {ready[0]["port"], ready[0]["rendezvous"]} <= set(ports)
        before = [psutil.Process(pid).memory_info().rss for pid in pids]
        for port in ports:
            for data in garbage(bomb):
                speak(port, data)
            echo(port)
        with crowd(ports, 2000 // len(ports)):
            for port in ports:
                speak(port, os.urandom(100))
            grown = [psutil.Process(pid).memory_info().rss - rss for pid, rss in zip(pids, before, strict=True)]
            job.signal(0, signal.SIGUSR1)  # the ranks also initialise again, while the strangers are connected
            finished = job.reports.await_event("finished", [0, 1], limit_s=20)
            assert job.wait(limit_s=20) == [0], job.printed()
    assert max(grown) < 32 * MEBIBYTE
    assert all(report["slowest"] < WAITED_S and report["rounds"] > 10 for report in finished.values()), finished
    assert all(report["refused"] >= 15 for report in finished.values()), finished
    assert not bomb.exists()


def test_fault_24_bytes_that_drip_are_dropped_in_time():
    with LaunchedJob(program("loop"), 2) as job:
        pids = [report["pid"] for report in job.ready().values()]
        dripping = [Dripping(port) for port in sorted(listening([*pids, job.processes[0].pid]))]
        dropped = [stranger.join() for stranger in dripping]
        job.signal(0, signal.SIGUSR1)
        assert job.wait(limit_s=20) == [0], job.printed()
    assert len(dropped) == 3
    assert all(seconds is not None and 3 < seconds < 15 for seconds in dropped), dropped


def local_listeners(pids: list[int]) -> list[str]:
    """Return the names of the unix sockets on which these processes listen."""
    held = {file for pid in pids for file in open_files(pid)}
    with open("/proc/net/unix") as table:
        rows = [line.split() for line in table][1:]
    return [row[-1] for row in rows if int(row[3], 16) & 0x10000 and f"socket:[{row[6]}]" in held]


def test_fault_24_ten_thousand_connections_to_every_port():
    """Check three TCP ports. The ranks of a host close their unix sockets once they are connected."""
    with LaunchedJob(program("loop"), 2) as job:
        pids = [report["pid"] for report in job.ready().values()]
        everyone = [*pids, job.processes[0].pid]
        ports = sorted(listening(everyone))
        assert len(ports) == 3
        assert local_listeners(everyone) == []
        before = [psutil.Process(pid).memory_info().rss for pid in everyone]
        assert [rush(port, 10_000) for port in ports] == [10_000] * 3
        grown = [psutil.Process(pid).memory_info().rss - rss for pid, rss in zip(everyone, before, strict=True)]
        job.signal(0, signal.SIGUSR1)
        finished = job.reports.await_event("finished", [0, 1], limit_s=20)
        assert job.wait(limit_s=20) == [0], job.printed()
    assert max(grown) < 32 * MEBIBYTE, grown
    assert all(report["slowest"] < WAITED_S for report in finished.values()), finished
