# SPDX-License-Identifier: Apache-2.0
"""Jobs on several hosts through real ssh: ranks, transferred settings, and hosts that cannot be used."""

import re
import sys
from pathlib import Path

from testkit.launcher import HOROVODRUN, lines_by_rank

ALLREDUCE = [sys.executable, str(Path(__file__).with_name("programs") / "allreduce.py")]


def test_two_hosts_of_two_ranks_that_the_launcher_is_not_one_of(horovodrun):
    done = horovodrun("-H", "h2:2,h3:2", *ALLREDUCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert lines_by_rank(done.stdout) == {
        0: ["h2 0/4 0/2 0/2 6"],
        1: ["h2 1/4 1/2 0/2 6"],
        2: ["h3 2/4 0/2 1/2 6"],
        3: ["h3 3/4 1/2 1/2 6"],
    }


def test_unequal_slots_of_a_hostfile_on_three_hosts_that_the_launcher_is_one_of(horovodrun, tmp_path):
    (tmp_path / "hosts").write_text("h1 slots=1\nh2 slots=2  # twice\nh3\n")
    done = horovodrun("--verbose", "--hostfile", str(tmp_path / "hosts"), *ALLREDUCE)
    assert done.returncode == 0, done.stderr
    assert lines_by_rank(done.stdout) == {
        0: ["h1 0/4 0/1 0/3 6"],
        1: ["h2 1/4 0/2 1/3 6"],
        2: ["h2 2/4 1/2 0/1 6"],
        3: ["h3 3/4 0/1 2/3 6"],
    }
    said = done.stderr.splitlines()
    assert "horovodrun: host h2: address 10.77.0.2 on eth0 (its only address; all 2 others reach it)" in said


def test_np_takes_the_first_slots(horovodrun):
    done = horovodrun("-np", "2", "-H", "h3:1,h2:4", *ALLREDUCE)
    assert lines_by_rank(done.stdout) == {0: ["h3 0/2 0/1 0/2 1"], 1: ["h2 1/2 0/1 1/2 1"]}, done.stderr


def test_what_travels_and_what_does_not(horovodrun, tmp_path):
    program = (
        "import os, sys; e = os.environ; print(os.getcwd(), e['ASKED'], e['PYTHONPATH'], e['SHLVL'], len(sys.path))"
    )
    env = {"ASKED": "two words\nand 'quotes'", "PYTHONPATH": f"{tmp_path}/with space", "SHLVL": "launcher"}
    words = ["-H", "h2:1", "--output-filename", str(tmp_path / "out"), sys.executable, "-c", program]
    done = horovodrun(*words, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out" / "rank.0" / "stdout").read_text()  # written on the launcher's host
    assert text.startswith(f"{tmp_path} two words\nand 'quotes' {tmp_path}/with space ")
    assert "launcher" not in text


def test_only_ranks_of_the_launchers_host_have_its_gpus(horovodrun):
    show = [sys.executable, "-c", "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"]
    done = horovodrun("-H", "h1:2,h2:1", *show, env={"CUDA_VISIBLE_DEVICES": "5"})
    assert done.returncode == 0, done.stderr
    assert lines_by_rank(done.stdout) == {0: ["5"], 1: ["5"], 2: ["None"]}
    assert "CUDA_VISIBLE_DEVICES=5 lists 1 GPU for 2 ranks of this host" in done.stderr


def test_the_secret_is_on_no_command_line(horovodrun):
    program = """
import contextlib, os, pathlib
secret = os.environ["_HOROVOD_SECRET_KEY"].encode()
lines = []
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # processes that have just ended
        lines.append(path.read_bytes())
agents = [line for line in lines if b"horovod.runner.agent" in line]
print(len(secret) > 20, len(agents) > 0, any(secret in line for line in lines))
"""
    done = horovodrun("-H", "h2:1,h3:1", sys.executable, "-c", program)
    assert lines_by_rank(done.stdout) == {0: ["True True False"], 1: ["True True False"]}, done.stderr


def test_much_output_arrives_whole_and_in_order(horovodrun):
    program = "import sys\nfor n in range(200_000): print(n)\nprint('end', file=sys.stderr); sys.exit(3)"
    done = horovodrun("-H", "h2:1,h3:1", sys.executable, "-c", program, limit_s=60)
    assert done.returncode == 3
    failed = int(re.search(r"rank (\d) \(host h\d, pid \d+\) failed first: exit code 3", done.stderr)[1])
    assert lines_by_rank(done.stdout)[failed] == [str(n) for n in range(200_000)]


def test_a_function_on_other_hosts(on_h1):
    program = """
import horovod, socket
def place(word):
    import horovod.numpy as hvd
    hvd.init()
    return f"{word} {hvd.rank()} on {socket.gethostname()}"
print(horovod.run(place, args=("rank",), num_proc=2, hosts="h2:1,h3:1"))
"""
    done = on_h1(sys.executable, "-c", program)
    assert done.stdout == "['rank 0 on h2', 'rank 1 on h3']\n", done.stderr


def test_fault_33_hosts_that_cannot_be_used_are_named_in_one_answer(hosts, horovodrun):
    """Check that one answer names both bad hosts and not the good one: one has no address, one has an unknown key."""
    hosts.change_key("h3")
    try:
        done = horovodrun("-H", "h2:1,h3:1,nosuch:1", "true")
    finally:
        hosts.restore_key("h3")
    assert done.returncode == 1
    assert "no agent could be started on 2 of 3 hosts" in done.stderr
    assert re.search(r"^  nosuch: exit code 255\n +ssh: Could not resolve hostname nosuch", done.stderr, re.M)
    assert "Host key verification failed" in done.stderr
    assert "connect once by hand and check the key" in done.stderr
    assert re.search(r"to see it: ssh .* h3 'exec \S+ -m horovod.runner.agent --check'", done.stderr)
    assert "  h2:" not in done.stderr


def test_a_wrong_key_and_the_advice(hosts, horovodrun, tmp_path):
    (tmp_path / "key").write_text("not a key\n")
    (tmp_path / "key").chmod(0o600)
    ssh = f"ssh -F none -o UserKnownHostsFile={hosts.folder}/known_hosts -o IdentityAgent=none"
    done = horovodrun("-i", str(tmp_path / "key"), "-H", "h2:1", "true", env={"HOROVOD_SSH_COMMAND": ssh})
    assert done.returncode == 1
    assert "Permission denied" in done.stderr
    assert "ssh must log in without a password: ssh-copy-id, ssh-agent, or -i FILE" in done.stderr


def test_a_missing_command_and_a_missing_folder(horovodrun, on_h1):
    done = horovodrun("-H", "h2:1,h3:1", "nosuchcommand")
    assert done.returncode == 127
    assert re.fullmatch(r"horovodrun: error: command not found on host h[23]: 'nosuchcommand'\n", done.stderr)
    script = f"mount -t tmpfs none /mnt && mkdir /mnt/here && cd /mnt/here && exec {' '.join(HOROVODRUN)} -H h2:1 true"
    done = on_h1("unshare", "--mount", "sh", "-c", script)  # a folder that only the launcher sees
    assert done.returncode == 1
    assert "h2: cannot work in /mnt/here: No such file or directory" in done.stderr
