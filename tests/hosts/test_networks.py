# SPDX-License-Identifier: Apache-2.0
"""Hosts that reach each other over IPv6 only, and whose only IPv4 address is that of a Docker bridge."""

import sys
from pathlib import Path

import pytest
from testkit.launcher import HOROVODRUN, lines_by_rank
from testkit.needs import need
from testkit.processes import run
from testkit.ssh import SshHosts, missing

ALLREDUCE = [sys.executable, str(Path(__file__).with_name("programs") / "allreduce.py")]


@pytest.fixture(scope="module")
def odd_hosts(tmp_path_factory):
    need(missing(), "root, and scripts/system-packages")
    hosts = SshHosts(["a", "b", "c"], tmp_path_factory.mktemp("ssh"), ipv6=True)
    for name in ("a", "b", "c"):
        bridge = "link add docker0 type bridge", "address add 172.17.0.1/16 dev docker0", "link set docker0 up"
        for words in bridge:
            done = run([*hosts.inside(name), "ip", *words.split()])
            assert done.returncode == 0, done.stderr
    yield hosts
    hosts.close()


def start(hosts, *words):
    return run([*hosts.inside("a"), *HOROVODRUN, *words], {"HOROVOD_SSH_COMMAND": hosts.ssh}, limit_s=90)


def test_the_address_that_all_reach_is_found_and_why_is_said(odd_hosts):
    done = start(odd_hosts, "--verbose", "-H", "a:1,b:2,c:1", *ALLREDUCE)
    assert done.returncode == 0, done.stderr
    assert lines_by_rank(done.stdout)[2] == ["b 2/4 1/2 0/1 6"]
    assert "host b: address fd77::2 on eth0 (all 2 others reach it, and not 172.17.0.1)" in done.stderr


def test_interfaces_that_are_named_decide_even_if_they_cannot_work(odd_hosts):
    done = start(odd_hosts, "--network-interfaces", "docker0", "-H", "b:1,c:1", "true")
    assert done.returncode == 1
    assert "the hosts cannot reach each other:\n  no address of" in done.stderr
    assert "no address of b can be reached by all other hosts:\n    from c: 172.17.0.1 (" in done.stderr
    done = start(odd_hosts, "--network-interfaces", "wlan7", "-H", "b:1,c:1", "true")
    assert "b has no network address that could be used" in done.stderr
