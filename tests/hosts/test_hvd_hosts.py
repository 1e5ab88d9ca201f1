# SPDX-License-Identifier: Apache-2.0
"""`hvd doctor -H` and `hvd test -H` on real hosts, and on hosts that have another version of Horovod."""

import itertools
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from testkit.launcher import python

import horovod

HVD = [sys.executable, "-m", "horovod.tools.cli"]
OTHER_VERSION = "0.9.9"


@pytest.fixture(scope="module")
def old_h2(hosts, tmp_path_factory):
    """Return the environment of a launcher for which h2 finds another version of khorovod before the real one."""
    folder = tmp_path_factory.mktemp("old")
    ours = Path(horovod.__path__[0])
    shutil.copytree(ours, folder / "horovod", copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__"))
    version = folder / "horovod" / "common" / "version.py"
    version.unlink()
    version.write_text((ours / "common" / "version.py").read_text().replace(horovod.__version__, OTHER_VERSION))
    script = folder / "ssh.py"
    script.write_text(
        "import os, sys\n"
        "*words, host, line = sys.argv[1:]\n"
        f"line = 'export PYTHONPATH={folder}; ' + line if host == 'h2' else line\n"
        f"os.execvp('ssh', [*{hosts.ssh.split()!r}, *words, host, line])\n"
    )
    return {"HOROVOD_SSH_COMMAND": f"{sys.executable} {script}", "PYTHONPATH": ""}


def test_doctor_tells_about_every_host_and_every_way(hosts, on_h1):
    done = on_h1(*HVD, "doctor", "-H", "h1:1,h2:1,h3:1", "--json", limit_s=90)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    names = [host["host"] for host in document["hosts"]]
    assert names == ["h1", "h2", "h3"]
    for host in document["hosts"]:
        assert host["answers"], host["problem"]
        assert (host["hostname"], host["khorovod"]) == (host["host"], horovod.__version__)
        assert (host["address"], host["interface"]) == (hosts.network.addresses[host["host"]], "eth0")
        assert host["reason"] == "its only address; all 2 others reach it"
        assert host["cores"] == len(os.sched_getaffinity(0))
        assert abs(host["clock_offset_s"]) <= host["clock_error_s"] + 1e-5  # all hosts share one clock
        assert any(finding["name"] == "/dev/shm" for finding in host["findings"])
    assert {(way["from"], way["to"]) for way in document["ways"]} == set(itertools.permutations(names, 2))
    for way in document["ways"]:
        assert way["problem"] == ""
        assert 0 < way["round_trip_s"] < 1
        assert way["bytes_per_second"] > 1e6


def test_every_collective_passes_on_real_hosts(on_h1):
    done = on_h1(*HVD, "test", "-H", "h2:1,h3:1", "--json", limit_s=90)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["passed"] is True
    assert (document["hosts"], document["transport"]) == ({"h2": 1, "h3": 1}, "TCP")
    assert sum(check["outcome"] == "pass" for check in document["checks"]) > 130


def test_fault_32_another_version_of_ours_is_refused_by_name(horovodrun, old_h2):
    done = horovodrun("-H", "h1:1,h2:1,h3:1", *python("print('ran')"), env=old_h2)
    assert done.returncode == 1
    said = f"all hosts need the same version of khorovod: this one has {horovod.__version__}, h2 has {OTHER_VERSION}"
    assert said in done.stderr
    assert done.stdout == ""


def test_hosts_that_cannot_be_used_do_not_hide_the_others(hosts, on_h1, old_h2):
    """Check hosts without ranks on the launcher's machine.

    It must be reachable, but the way from it is not measured.
    """
    hosts.change_key("h3")
    try:
        done = on_h1(*HVD, "doctor", "-H", "h2:1,h3:1,nosuch:1", env=old_h2)
    finally:
        hosts.restore_key("h3")
    assert done.returncode == 1, done.stderr
    rows = {line.split()[0]: line for line in reversed(done.stdout.splitlines()) if line.strip()}
    assert f"{hosts.network.addresses['h1']} (eth0)" in rows["the"]
    assert OTHER_VERSION in rows["h2"]
    words = " ".join(done.stdout.split())
    assert f"h2: install khorovod {horovod.__version__} there, or {OTHER_VERSION} here" in words
    assert "h3: Host key verification failed.; the host has another key than before" in words
    assert "nosuch: ssh: Could not resolve hostname nosuch" in words
