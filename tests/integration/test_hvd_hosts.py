# SPDX-License-Identifier: Apache-2.0
"""`hvd doctor -H` and `hvd test -H` with real hosts: network namespaces with an sshd in each. Needs root."""

import json
import os
import shutil
import socket
import sys
from pathlib import Path

import pytest
from testkit.launcher import HOROVODRUN, python
from testkit.processes import run
from testkit.ssh import SshHosts

import horovod

HVD = [sys.executable, "-m", "horovod.tools.cli"]
OTHER_VERSION = "0.9.9"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    hosts = SshHosts(["a", "b", "c"], tmp_path_factory.mktemp("hosts"))
    yield hosts
    hosts.close()


def on_a(hosts, *words, ssh=None):
    """Run a command on host a."""
    env = {"HOROVOD_SSH_COMMAND": ssh or hosts.ssh, "PYTHONPATH": ""}
    return run([*hosts.inside("a"), *words], env, limit_s=50)


@pytest.fixture(scope="module")
def ssh_with_old_b(hosts, tmp_path_factory):
    """An ssh whose host b has another version of khorovod installed, in front of ours."""
    folder = tmp_path_factory.mktemp("old")
    ours = Path(horovod.__path__[0])
    shutil.copytree(ours, folder / "horovod", copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__"))
    init = folder / "horovod" / "__init__.py"
    init.unlink()
    init.write_text((ours / "__init__.py").read_text().replace(horovod.__version__, OTHER_VERSION))
    script = folder / "ssh.py"
    script.write_text(
        "import os, sys\n"
        "*words, host, line = sys.argv[1:]\n"
        f"line = 'export PYTHONPATH={folder}; ' + line if host == 'b' else line\n"
        f"os.execvp('ssh', [*{hosts.ssh.split()!r}, *words, host, line])\n"
    )
    return f"{sys.executable} {script}"


def test_doctor_tells_about_every_host_and_every_way(hosts):
    done = on_a(hosts, *HVD, "doctor", "-H", "a:1,b:1,c:1", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    for host in document["hosts"]:
        assert host["answers"], host["problem"]
        assert (host["hostname"], host["khorovod"]) == (host["host"], horovod.__version__)
        assert (host["address"], host["interface"]) == (hosts.network.addresses[host["host"]], "eth0")
        assert host["reason"] == "its only address; all 2 others reach it"
        assert host["cores"] == len(os.sched_getaffinity(0))
        assert abs(host["clock_offset_s"]) <= host["clock_error_s"] + 1e-5  # it is one clock
        assert any(finding["name"] == "/dev/shm" for finding in host["findings"])
    assert {(way["from"], way["to"]) for way in document["ways"]} == {
        (start, end) for start in "abc" for end in "abc" if start != end
    }
    for way in document["ways"]:
        assert way["problem"] == ""
        assert 0 < way["round_trip_s"] < 1
        assert way["bytes_per_second"] > 1e6


def test_every_collective_passes_on_real_hosts(hosts):
    done = on_a(hosts, *HVD, "test", "-H", "a:1,b:1", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["passed"] is True
    assert (document["hosts"], document["transport"]) == ({"a": 1, "b": 1}, "TCP")
    assert sum(check["outcome"] == "pass" for check in document["checks"]) > 130


def test_another_version_of_ours_is_refused_by_name(hosts, ssh_with_old_b):
    done = on_a(hosts, *HOROVODRUN, "-H", "a:1,b:1,c:1", *python("print('ran')"), ssh=ssh_with_old_b)
    assert done.returncode == 1
    said = f"all hosts need the same version of khorovod: this one has {horovod.__version__}, b has {OTHER_VERSION}"
    assert said in done.stderr
    assert "ran" not in done.stdout


def test_hosts_that_cannot_be_used_do_not_hide_the_others(hosts, ssh_with_old_b):
    """The launcher's machine is no host of this job: a must be reached, and is not measured. Last: c stays silent."""
    hosts.stop("c")
    done = on_a(hosts, *HVD, "doctor", "-H", "b:1,c:1,a.example.invalid:1", ssh=ssh_with_old_b)
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "10.77.0.1 (eth0)" in rows["the"]
    assert OTHER_VERSION in rows["b"]
    words = " ".join(done.stdout.split())
    assert f"b: install khorovod {horovod.__version__} there, or {OTHER_VERSION} here" in words
    assert "c: ssh: connect to host c port 22: Connection refused; to see it: " in words
    assert "a.example.invalid: ssh: Could not resolve hostname" in words


def test_doctor_of_hosts_that_are_all_here():
    done = run([*HVD, "doctor", "-H", "localhost:2", "--json"], limit_s=30)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    [host] = document["hosts"]
    assert (host["slots"], host["hostname"], host["address"]) == (2, socket.gethostname(), "127.0.0.1")
    assert document["ways"] == []
