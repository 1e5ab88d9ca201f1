# SPDX-License-Identifier: Apache-2.0
"""Hosts, slots and the rank assignment."""

import contextlib
import os
import socket

import pytest

from horovod.launcher.options import JobOptions
from horovod.launcher.start.hosts import (
    HostInfo,
    get_host_assignments,
    is_local,
    named_slots,
    parse_host_file,
    parse_host_files,
    parse_hosts,
    plan_hosts,
)
from horovod.launcher.start.limits import check_local_processes

NOBODY = 65534


def places(hosts, size):
    return [
        (s.hostname, s.rank, s.local_rank, s.cross_rank, s.local_size, s.cross_size)
        for s in get_host_assignments(parse_hosts(hosts), size)
    ]


def test_ranks_follow_hosts_and_slots():
    assert places("a:2,b:2", 4) == [
        ("a", 0, 0, 0, 2, 2),
        ("a", 1, 1, 0, 2, 2),
        ("b", 2, 0, 1, 2, 2),
        ("b", 3, 1, 1, 2, 2),
    ]


def test_uneven_hosts_count_only_hosts_that_own_the_slot():
    assert places("a:1,b:3", 4) == [
        ("a", 0, 0, 0, 1, 2),
        ("b", 1, 0, 1, 3, 2),
        ("b", 2, 1, 0, 3, 1),
        ("b", 3, 2, 0, 3, 1),
    ]


def test_slots_that_are_not_needed_stay_empty():
    assert places("a:4,b:4", 5)[-1] == ("b", 4, 0, 1, 1, 2)
    assert {place[0] for place in places("a:4,b:4", 3)} == {"a"}


def test_too_few_slots():
    with pytest.raises(ValueError, match="Requested more processes"):
        places("a:1,b:1", 3)


@pytest.mark.parametrize(
    "text", ["a", "a:", "a:x", ":2", "a:2,", "a b:2", "a;rm -rf:1", "$(x):1", "a:0", "a:00", "a:-1", ""]
)
def test_bad_hosts(text):
    with pytest.raises(ValueError, match="host|Host"):
        parse_hosts(text)


@pytest.mark.parametrize(
    "text", ["a:1048577", "a:" + "9" * 10_000, "a" * 10_000 + ":1", "\u0661:1", "a:\u0661", "\ud800:1"]
)
def test_hosts_that_nobody_has(text):
    with pytest.raises(ValueError, match=r"^.{1,300}with 1 to 1048576 slots, for example worker-0:2,worker-1:2$"):
        parse_hosts(text)


def test_a_host_named_twice_has_all_its_slots():
    assert parse_hosts("a:1,b:1,a:2") == [HostInfo("a", 3), HostInfo("b", 1)]


@pytest.mark.parametrize("count", ["1048577", "100000000", "9" * 5000])
def test_no_host_in_a_file_has_so_many_slots(tmp_path, count):
    (tmp_path / "hosts").write_text(f"b\na slots={count}\n")
    with pytest.raises(ValueError, match="hosts:2: expected 'host slots=n' with n from 1 to 1048576, found 'a slots="):
        parse_host_file(str(tmp_path / "hosts"))


@pytest.mark.parametrize("number", [0, -1, 100_000_000, 10**30])
def test_no_job_has_so_many_processes(number):
    with pytest.raises(ValueError, match=rf"num_proc\) must be between 1 and 1048576, not {number}"):
        plan_hosts(JobOptions(num_proc=number))


def test_no_more_processes_than_the_user_may_run(monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: 1000)
    monkeypatch.setattr("resource.getrlimit", lambda _: (50, 100))
    monkeypatch.setattr("horovod.launcher.start.limits.used_tasks", lambda enough: 3)
    check_local_processes(45)
    with pytest.raises(ValueError, match=r"51 processes are too many .*this user may run 50 \(ulimit -u\)"):
        check_local_processes(51)
    with pytest.raises(
        ValueError, match=r"46 .* may run 50 processes and threads \(ulimit -u\), of which 3 run already"
    ):
        check_local_processes(46)


def test_hostfile(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# ours\nnode-1 slots=2\n\nnode-2.x   slots = 4 # big\nnode-3\n")
    assert parse_host_files(str(path)) == "node-1:2,node-2.x:4,node-3:1"


@pytest.mark.parametrize(
    "line",
    [
        "node slots=x",
        "node slots=0",
        "node slots=00",
        "node slots=1048577",
        "node 4",
        "no;de slots=1",
        "node slots=1 max=2",
    ],
)
def test_fault_30_a_bad_hostfile_is_refused_with_its_line(tmp_path, line):
    path = tmp_path / "hosts"
    path.write_text(f"ok slots=1\n{line}\n")
    with pytest.raises(ValueError, match=r"hosts:2: expected 'host slots=n'"):
        parse_host_file(str(path))


def test_an_empty_hostfile_is_refused(tmp_path):
    (tmp_path / "hosts").write_text("# nothing\n")
    with pytest.raises(ValueError, match="names no host"):
        parse_host_file(str(tmp_path / "hosts"))


@contextlib.contextmanager
def as_user_without_rights():
    """Run the block as a user who cannot read every file, even if root runs the tests."""
    uid = os.geteuid()
    if uid == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if uid == 0:
            os.seteuid(uid)


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        ("missing", FileNotFoundError, "No such file or directory; correct the path or write the file, one line 'host"),
        ("directory", IsADirectoryError, "Is a directory; name a file of lines 'host slots=n'"),
        ("unreadable", PermissionError, "Permission denied; make the file readable for this user"),
        ("below a file", NotADirectoryError, "Not a directory; check the path"),
    ],
)
@pytest.mark.parametrize(
    "find", [lambda path: plan_hosts(JobOptions(hostfile=path)), lambda path: named_slots(None, path)]
)
def test_a_hostfile_that_cannot_be_read_is_named_with_its_flag_and_the_remedy(tmp_path, kind, error, text, find):
    path = tmp_path / "hosts"
    if kind == "directory":
        path.mkdir()
    elif kind != "missing":
        path.write_text("a slots=1\n")
        path.chmod(0)
    path = path / "x" if kind == "below a file" else path
    other = as_user_without_rights() if kind == "unreadable" else contextlib.nullcontext()
    with other, pytest.raises(error) as caught:
        find(str(path))
    shown = str(caught.value)
    assert shown.startswith(f"cannot read the hostfile {str(path)!r} (--hostfile): {text}")
    assert shown.endswith(", or name the hosts with -H host:slots,...")
    assert "Errno" not in shown


def test_what_counts_as_this_machine(monkeypatch):
    assert all(is_local(name) for name in ("localhost", "127.0.0.1", "127.0.0.2", socket.gethostname()))
    assert not is_local("192.0.2.1")
    assert not is_local("no-such-host.invalid")
    monkeypatch.setenv("HOROVOD_SIMULATE_HOSTS", "1")
    assert is_local("no-such-host.invalid")


def test_without_hosts_it_is_this_machine():
    assert plan_hosts(JobOptions(num_proc=3)) == [HostInfo("localhost", 3)]


def test_a_batch_system_s_hosts_are_used_unless_others_are_named():
    two = [HostInfo("a", 2), HostInfo("b", 2)]
    assert plan_hosts(JobOptions(num_proc=3), two) == two
    assert plan_hosts(JobOptions(num_proc=1, hosts="c:1"), two) == [HostInfo("c", 1)]
    with pytest.raises(ValueError, match="Requested more processes"):
        plan_hosts(JobOptions(num_proc=5), two)
    # A single allocated host does not limit the number of processes: if its slots are too few, this machine is used.
    assert plan_hosts(JobOptions(num_proc=2), two[:1]) == two[:1]
    assert plan_hosts(JobOptions(num_proc=4), two[:1]) == [HostInfo("localhost", 4)]


def test_np_may_be_left_out_where_hosts_say_their_slots(tmp_path):
    (tmp_path / "hosts").write_text("a slots=2\nb\n")
    assert named_slots("a:2,b:3", None) == 5
    assert named_slots(None, str(tmp_path / "hosts")) == 3
    assert named_slots(None, None) is None
