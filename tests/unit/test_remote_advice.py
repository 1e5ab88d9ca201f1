# SPDX-License-Identifier: Apache-2.0
"""Hosts that cannot be used: the remedy matches the cause, and control characters in their output are escaped."""

import re
import shutil
import sys
from contextlib import closing

import pytest
from testkit.launcher import horovodrun
from testkit.needs import need
from testkit.processes import run
from testkit.speed import patience

from horovod.common.escaping import escaped
from horovod.common.leaving import printable
from horovod.launcher.elastic.polling import DiscoveryError, find_hosts
from horovod.launcher.elastic.progress import told_by
from horovod.launcher.remote.advice import advice_for, require_program
from horovod.launcher.remote.command import Reaching, blaunch_command, program_of, ssh_command
from horovod.launcher.remote.hosts import RemoteHosts
from horovod.launcher.remote.slurm import srun_command

PYTHON = "/opt/env/bin/python"
COMMAND = ssh_command("h", Reaching(), PYTHON, {})


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        (["no such identity: /k: No such file or directory", "h: Permission denied (publickey)."], "no such key file"),
        (["Warning: Identity file /k not accessible: No such file or directory."], "no such key file"),
        (["@ WARNING: UNPROTECTED PRIVATE KEY FILE! @", "h: Permission denied (publickey)."], "chmod 600"),
        (['Load key "/k": invalid format', "h: Permission denied (publickey)."], "holds no private key"),
        (["Bad owner or permissions on /root/.ssh/config"], "configuration that others may write"),
        (["@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", "Host key verification failed."], "ssh-keygen -R"),
        (["Host key for h has changed and you have requested strict checking."], "ssh-keygen -R"),
        (["Host key verification failed."], "~/.ssh/known_hosts"),
        (["Received disconnect from h port 22:2: Too many authentication failures"], "name one with -i FILE"),
        (["u@h: Permission denied (publickey,password)."], "ssh must log in without a password"),
        (["ssh: Could not resolve hostname h: Name or service not known"], "no such host name is known here"),
        (["ssh: connect to host h port 22: Connection refused"], "sshd does not listen there"),
        (["ssh: connect to host h port 22: No route to host"], "the host is down, or a firewall"),
        (["ssh: connect to host h port 22: Connection timed out"], "the host is down, or a firewall"),
        ([f"{PYTHON}: Error while ... (ModuleNotFoundError: No module named 'horovod')"], "khorovod must be installed"),
        (["ModuleNotFoundError: No module named 'msgpack'"], "what khorovod needs must be installed with it"),
        ([f"bash: line 1: {PYTHON}: No such file or directory"], "the same Python must be on every host"),
        ([f"sh: 1: exec: {PYTHON}: not found"], "the same Python must be on every host"),
        ([f"zsh:1: no such file or directory: {PYTHON}"], "the same Python must be on every host"),
        ([f"bash: {PYTHON}: cannot execute binary file: Exec format error"], "the same Python must be on every host"),
        ([f"bash: line 1: {PYTHON}: Permission denied"], "the same Python must be on every host"),
        (["bash: /etc/profile.d/modules.sh: No such file or directory"], None),
        (["stty: 'standard input': command not found", "Welcome"], None),
        ([], None),
    ],
)
def test_the_remedy_fits_what_ssh_and_the_host_said(said, remedy):
    *found, to_see = advice_for(["Welcome to h", *said], COMMAND, PYTHON)
    assert to_see.startswith("to see it: ssh -T h ")
    assert len(found) == (remedy is not None)
    assert remedy is None or remedy in found[0]


@pytest.mark.parametrize(
    ("key", "remedy"),
    [("/no/such/key", "this machine has no such key file"), (None, "no such host name is known here")],
)
def test_the_words_of_the_ssh_that_is_installed_are_known(key, remedy):
    need([] if shutil.which("ssh") else ["ssh"], "its words are read")
    command = ssh_command("no-such-host.invalid", Reaching(identity_file=key), PYTHON, {})
    assert remedy in advice_for(run(command).stderr.splitlines(), command, PYTHON)[0]


GPUS = {"CUDA_VISIBLE_DEVICES": "0"}  # the command unsets it with `env -u`
KUBEXEC = {"OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh"}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (COMMAND, "'ssh', which is not in PATH: install the OpenSSH client"),
        (ssh_command("h", Reaching("my-ssh -q"), PYTHON, {}), "'my-ssh', which is not in PATH: correct HOROVOD_SSH_"),
        (ssh_command("h", Reaching("/x/s"), PYTHON, {}), "'/x/s', which is not a program here: correct HOROVOD_SSH_"),
        (srun_command("h", [PYTHON], GPUS, {}), "'srun', which is not in PATH: start this where"),
        (blaunch_command("h", PYTHON, GPUS), "'blaunch', which is not in PATH: start this where"),
        (
            ssh_command("h", Reaching(), PYTHON, KUBEXEC),
            "'/etc/mpi/kubexec.sh', which is not a program here: OMPI_MCA_",
        ),
    ],
)
def test_a_missing_program_that_reaches_hosts_is_named_with_the_remedy(monkeypatch, tmp_path, command, words):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=re.escape(f"other hosts are reached by {words}")):
        require_program(command)


def test_the_program_behind_what_changes_its_environment():
    assert program_of(["env", "-u", "A", "-u", "B", "srun", "x"]) == "srun"
    assert program_of(["ssh", "-u", "x"]) == "ssh"


def test_no_ssh_in_path_is_one_error_of_the_launcher(tmp_path):
    done = horovodrun("-np", "1", "-H", "no-such-host.invalid:1", "true", env={"PATH": str(tmp_path)})
    assert re.fullmatch(
        "horovodrun: error: other hosts are reached by 'ssh', which is not in PATH: install the .*\n", done.stderr
    )
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a \x1b[2J\x07\x00\x7f", r"a \x1b[2J\x07\x00\x7f"),
        ("\x9b31m", r"\x9b31m"),  # this single character is equivalent to ESC [
        ("tab\tand\nline", "tab\tand\nline"),
        ("over\r", r"over\r"),
        ("right\u202eleft\u2028", r"right\u202eleft\u2028"),
        ("größe\u3000中\xa0.", "größe\u3000中\xa0."),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text, shown):
    assert escaped(text) == shown


def test_reports_of_workers_stay_on_one_line():
    assert printable("a\nb\x1bc") == r"a\nb\x1bc"


def test_the_stack_that_a_stuck_worker_sends_is_escaped():
    message = {"generation": 0, "finished": 0, "commits": 0, "waits": False, "stack": "a\n\x1b"}
    assert told_by(0, message).stack == "a\n\\x1b"


GREETING = r"""
import sys, time
from horovod.launcher.remote import frames
def send(*message):
    sys.stdout.buffer.write(frames.pack(*message))
    sys.stdout.buffer.flush()
print("login \x1b]0;title\x07", flush=True)
sys.stdout.buffer.write(frames.GREETING)
send("hello", {"version": "1\x1b[2J", "addresses": [["eth\x07", "10.0.0.1"]], "cores": 2})
"""
HOSTILE = r"""
send("listening", 7, b"\x1b")
send("failed", "cannot work in \x1b[5m\nthere")
time.sleep(60)
"""
COLOURFUL = r"""
sys.stdin.buffer.read(4)
send("ready")
send("output", 0, 0, b"\x1b[31mred\r\n")
send("closed", 0, 0)
send("closed", 0, 1)
time.sleep(60)
"""


def agent(source):
    return closing(RemoteHosts({"h": [sys.executable, "-c", GREETING + source]}))


def test_control_bytes_of_another_host_are_escaped_wherever_they_come_from():
    with agent(HOSTILE) as remote:
        host = remote.hosts["h"]
        remote.wait(lambda _: False, patience(20))
        assert host.is_gone
        assert host.facts == {"version": r"1\x1b[2J", "addresses": [[r"eth\x07", "10.0.0.1"]], "cores": 2}
        assert remote.answers["h", "listening"] == [7, b"\x1b"]  # bytes are never displayed, so they are not escaped
        assert host.problem == "cannot work in \\x1b[5m\nthere"
        assert host.complaints()[0] == r"login \x1b]0;title\x07"


def test_what_a_worker_prints_is_not_changed():
    with agent(COLOURFUL) as remote:
        remote.begin("h", {}, "/")
        stdout, stderr = remote.start("h", 0, ["true"], {})
        with stdout, stderr:
            assert stdout.read(100) == b"\x1b[31mred\r\n"


def test_the_banner_of_a_host_is_shown_without_its_control_bytes(tmp_path):
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nprintf 'banner \\033[2J\\007\\n'; printf 'broken \\033]0;x\\007\\n' >&2; exit 3\n")
    ssh.chmod(0o755)
    done = horovodrun("-np", "1", "-H", "no-such-host.invalid:1", "true", env={"HOROVOD_SSH_COMMAND": str(ssh)})
    assert r"banner \x1b[2J\x07" in done.stderr
    assert r"broken \x1b]0;x\x07" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_discovery_script_that_fails_cannot_take_over_the_terminal():
    with pytest.raises(DiscoveryError, match=r"exit code 3: no \\x1b\[2J hosts"):
        find_hosts("printf 'no \\033[2J hosts' >&2; exit 3", 1)
