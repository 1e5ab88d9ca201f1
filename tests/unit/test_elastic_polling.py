# SPDX-License-Identifier: Apache-2.0
"""Valid output of a discovery script, and parsing of an elastic job's limits."""

import os
import re
import threading

import psutil
import pytest
from testkit.awaiting import await_that
from testkit.launcher import horovodrun
from testkit.speed import patience

from horovod.launcher.elastic.polling import DiscoveryError, Polling, Script, find_hosts, parse_hosts
from horovod.launcher.elastic.running import limits_of
from horovod.launcher.options import JobOptions


def test_hosts_with_and_without_slots():
    assert parse_hosts("a:2\n\n  b \n", 4) == {"a": 2, "b": 4}
    assert parse_hosts("", None) == {}


@pytest.mark.parametrize(("text", "words"), [("a", "without a number of slots"), ("a:x", "a:x"), ("; rm -rf:2", "rm")])
def test_anything_else_is_refused(text, words):
    with pytest.raises(DiscoveryError, match=words):
        parse_hosts(text, None)


def test_a_script_that_fails_is_quoted():
    assert find_hosts("echo localhost:2", None) == {"localhost": 2}
    with pytest.raises(DiscoveryError, match="ended with exit code 3: no cluster today"):
        find_hosts("echo no cluster today >&2; exit 3", None)


@pytest.mark.parametrize(
    ("script", "limit_s", "words"),
    [
        ("sleep 60 & sleep 60", 0.2, "has not ended after 0.2 s"),
        ("yes", 20, "printed more than 1048576 bytes"),
        ("exec >&-; sleep 60", 20, "does not end"),
    ],
)
def test_fault_10_a_slow_or_endless_script_is_ended_with_what_it_started(script, limit_s, words, monkeypatch):
    monkeypatch.setattr("horovod.launcher.elastic.polling._END_S", 0.2)
    marked = f"export MARK_OF_THIS_TEST={os.getpid()}; {script}"
    with pytest.raises(DiscoveryError, match=words):
        Script(marked, None, limit_s)()
    wanted = {"MARK_OF_THIS_TEST": str(os.getpid())}
    left = [one for one in psutil.process_iter() if wanted.items() <= environment_of(one).items()]
    assert psutil.wait_procs(left, timeout=10)[1] == []


@pytest.mark.parametrize("code", [0, 3])
def test_a_script_that_has_ended_is_read_to_its_end_though_its_child_holds_stdout(code):
    """The child holds the script's stdout open; it ends when this test closes the pipe that it reads."""
    held, release = os.pipe()
    child = f"(read line < /proc/{os.getpid()}/fd/{held}) &"
    script = Script(f"{child} echo a:2; printf b:1; echo no cluster >&2; exit {code}", None, limit_s=patience(60))
    try:
        if code == 0:
            assert script() == {"a": 2, "b": 1}
        else:
            with pytest.raises(DiscoveryError, match="ended with exit code 3: no cluster"):
                script()
    finally:
        os.close(release)
        os.close(held)


def environment_of(process):
    try:
        return process.environ() if process.status() != psutil.STATUS_ZOMBIE else {}
    except psutil.Error:
        return {}


def test_fault_10_each_new_problem_is_said_once_and_the_last_good_list_is_kept(monkeypatch):
    monkeypatch.setattr("horovod.launcher.elastic.polling.DISCOVER_HOSTS_FREQUENCY_SECS", 0.001)
    answers = iter([{"a": 1}, *[DiscoveryError("exit code 3: no cluster")] * 5, *[{}] * 3, {"a": 1}, {"a": 2}])
    found, said, is_over = [], [], threading.Event()

    def find():
        answer = next(answers, None)
        if answer is None:
            is_over.set()
            return {"a": 2}
        if isinstance(answer, DiscoveryError):
            raise answer
        return answer

    with Polling(find, found.append, said.append) as polling:
        assert is_over.wait(20)
        await_that(lambda: len(found) == 2)
        polling.report_again()
        await_that(lambda: len(found) == 3)
    assert found == [{"a": 1}, {"a": 2}, {"a": 2}]
    assert said == [
        "exit code 3: no cluster; the last good list of hosts is kept",
        "--host-discovery-script printed no hosts; the last good list of hosts is kept",
    ]


def test_an_empty_list_at_the_start_ends_by_the_time_limit(tmp_path):
    script = tmp_path / "no-hosts"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    flags = ["-np", "1", "--min-np", "1", "--elastic-timeout", "2", "--host-discovery-script", str(script)]
    done = horovodrun(*flags, "true", limit_s=20)
    assert done.returncode == 1
    assert "printed no hosts; it is called again every second" in done.stderr
    assert "the last good list" not in done.stderr, "there was none"
    assert "after 2 s (--elastic-timeout) 0 workers are ready, 1 are needed, and 0 slots are known" in done.stderr


def test_limits():
    given = {"num_proc": 4, "min_num_proc": 2, "reset_limit": 3, "cooldown_range": [1, 9], "elastic_timeout": 7}
    limits = limits_of(JobOptions.of(given), {"localhost": 6})
    assert (limits.min_num_proc, limits.max_num_proc, limits.fixed_hosts) == (2, 6, True)
    assert (limits.reset_limit, limits.cooldown, limits.timeout_s) == (3, (1.0, 9.0), 7.0)
    assert limits_of(JobOptions.of({"num_proc": 2, "host_discovery_script": "x"}), {}).min_num_proc == 2
    with pytest.raises(ValueError, match="--min-np 5, -np 4 and --max-np 6 must be in ascending order"):
        limits_of(JobOptions.of({"num_proc": 4, "min_num_proc": 5}), {"localhost": 6})


def test_a_negative_reset_limit_is_refused_by_name():
    limits = limits_of(JobOptions.of({"num_proc": 1, "reset_limit": 0}), {"localhost": 1})
    assert limits.reset_limit == 0
    with pytest.raises(ValueError, match=r"--reset-limit \(reset_limit\) must be at least 0, not -1"):
        limits_of(JobOptions.of({"num_proc": 1, "reset_limit": -1}), {"localhost": 1})


def test_an_elastic_timeout_of_0_in_the_environment_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("HOROVOD_ELASTIC_TIMEOUT", "0")
    with pytest.raises(ValueError, match="HOROVOD_ELASTIC_TIMEOUT='0' .* an integer of seconds from 1 to 2000000"):
        limits_of(JobOptions.of({"num_proc": 1}), {"localhost": 1})


@pytest.mark.parametrize("flag", ["--reset-limit=-1", "--elastic-timeout=0"])
def test_horovodrun_refuses_such_limits_before_anything_starts(flag, tmp_path):
    done = horovodrun("-np", "1", "--min-np", "1", flag, "touch", str(tmp_path / "started"), limit_s=20)
    assert done.returncode == 2
    assert re.search(r"horovodrun: error: --(reset-limit.* at least 0|elastic-timeout.* from 1 to)", done.stderr)
    assert not (tmp_path / "started").exists()
