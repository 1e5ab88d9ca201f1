# SPDX-License-Identifier: Apache-2.0
"""Warnings of the launcher about hosts with too few cores or threads for their ranks."""

import errno
import os
import threading

import pytest

from horovod.launcher.options import JobOptions
from horovod.launcher.start import limits, scarcity
from horovod.launcher.start.scarcity import (
    cores_notice,
    say_if_cores_of_hosts_are_few,
    say_what_is_scarce,
    threads_each,
)


class Said:
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


@pytest.fixture
def said():
    return Said()


@pytest.fixture
def bounded(monkeypatch):
    """Simulate a user limit of 100 processes and threads, 40 of which are in use."""
    monkeypatch.setattr(limits, "allowed_tasks", lambda: 100)
    monkeypatch.setattr(limits, "used_tasks", lambda enough: 40)


@pytest.mark.parametrize(("ranks", "cores"), [(2, 2), (8, 2), (4, 1), (100, 64), (1, None), (99, None), (99, "many")])
def test_a_few_ranks_for_each_core_and_unknown_cores_are_no_reason_to_warn(ranks, cores):
    assert cores_notice(ranks, cores, "this machine") is None


def test_far_more_ranks_than_cores_are_one_line():
    assert cores_notice(80, 8, "host a") == (
        "warning: host a has 8 cores for 80 ranks, so ranks wait for a core: start at most one rank for each core "
        "(8 here; -np, or the slots of the host)"
    )
    assert "has 1 core for 5 ranks" in cores_notice(5, 1, "this machine")


def test_the_ranks_of_this_machine_are_compared_with_the_cores_that_it_may_use(monkeypatch, said):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {4, 5})
    say_what_is_scarce(JobOptions(), 8, 8, said)
    assert said.lines == []
    say_what_is_scarce(JobOptions.of({"log_level": "error"}), 9, 9, said)
    assert said.lines == []
    say_what_is_scarce(JobOptions(), 9, 9, said)
    assert [line[:48] for line in said.lines] == ["warning: this machine has 2 cores for 9 ranks, s"]


def test_of_other_hosts_the_first_that_has_too_few_cores_is_named(said):
    facts = {"a": {"cores": 64}, "b": {}, "c": {"cores": 2}, "d": {"cores": 1}}
    ranks = dict.fromkeys(facts, 64)
    say_if_cores_of_hosts_are_few(JobOptions.of({"log_level": "fatal"}), ranks, facts, said)
    assert said.lines == []
    say_if_cores_of_hosts_are_few(JobOptions(), ranks, facts, said)
    assert len(said.lines) == 1
    assert said.lines[0].startswith("warning: host c has 2 cores for 64 ranks")


def test_threads_that_have_no_room_are_named_before_the_start(bounded, monkeypatch, said):
    assert limits.threads_notice(10, 5) is None
    notice = limits.threads_notice(10, 6)
    assert notice.startswith(
        "warning: this user may run 100 processes and threads (ulimit -u), of which 40 run already,"
    )
    assert "10 ranks with NumPy start about 60" in notice
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(29)))
    monkeypatch.setattr("os.environ", {})
    say_what_is_scarce(JobOptions(), 2, 2, said)
    assert said.lines == [limits.threads_notice(2, 30)]


def test_a_machine_without_ranks_has_enough_of_everything(bounded, monkeypatch):
    monkeypatch.setattr(limits, "used_tasks", lambda enough: 100)
    limits.check_local_processes(0)
    assert limits.threads_notice(0, 8) is None


def test_a_pool_of_threads_counts_as_the_user_has_set_it():
    assert threads_each(8, {}) == 9
    assert threads_each(8, {"OMP_NUM_THREADS": "1"}) == 2
    assert threads_each(8, {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "4"}) == 5
    assert threads_each(8, {"OMP_NUM_THREADS": "a few"}) == 9


def test_tasks_are_counted_by_user_where_it_may_matter():
    over = threading.Event()
    more = [threading.Thread(target=over.wait, args=(30,)) for _ in range(3)]
    before = limits.used_tasks(enough=0)
    try:
        for one in more:
            one.start()
        assert limits._tasks_of(str(os.getpid()), os.getuid()) >= 4
        assert limits._tasks_of(str(os.getpid()), os.getuid() + 1) == 0
        assert limits._tasks_of("0", os.getuid()) == 0
    finally:
        over.set()
    assert before >= 1
    assert limits.used_tasks(enough=1 << 40) >= 1


@pytest.mark.parametrize("error", [BlockingIOError(errno.EAGAIN, "no"), RuntimeError("can't start new thread")])
def test_a_refused_process_or_thread_is_explained(bounded, error):
    assert limits.is_shortage(error)
    text = limits.explain_shortage(error)
    assert text.startswith("no room for another process or thread: this user may run 100 (ulimit -u). Raise the limit")


def test_other_errors_stay_as_they_are(bounded):
    assert limits.explain_shortage(ValueError("a bad value")) == "a bad value"
    assert not limits.is_shortage(RuntimeError("another"))
    assert scarcity.RANKS_PER_CORE == 4
