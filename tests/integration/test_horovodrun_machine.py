# SPDX-License-Identifier: Apache-2.0
"""horovodrun on machines without enough cores, without room for threads, or without a loopback interface."""

import json
import os
import re
import shutil
import sys

import pytest
from testkit.launcher import HOROVODRUN
from testkit.needs import need
from testkit.processes import run


def as_user_with(tasks):
    """Return a command prefix for a separate user who may read all files and run `tasks` processes and threads."""
    absent = [name for name in ("setpriv", "prlimit") if shutil.which(name) is None]
    need([*absent, *([] if os.geteuid() == 0 else ["root"])], "a user of its own")
    user = str(700_000 + os.getpid())
    reads = ["--clear-groups", "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    return ["setpriv", "--reuid", user, "--regid", user, *reads, "prlimit", f"--nproc={tasks}"]


@pytest.mark.parametrize(
    ("tasks", "code", "text"),
    [
        (1, 2, "error: no room for another process or thread: this user may run 1 (ulimit -u). Raise the limit"),
        (
            5,
            2,
            "error: 2 processes are too many for this machine: this user may run 5 processes and threads (ulimit -u)",
        ),
        (40, 0, "warning: this user may run 40 processes and threads (ulimit -u), of which"),
    ],
)
def test_a_limit_that_leaves_no_room_for_threads_is_named_before_the_start(tasks, code, text):
    words = [*as_user_with(tasks), *HOROVODRUN, "-np", "2", "true"]
    done = run(words, cwd="/", env={"OPENBLAS_NUM_THREADS": "20"})
    assert done.stderr.startswith(f"horovodrun: {text}")
    assert (done.stderr.count("\n"), done.returncode) == (1, code)


DOWN = "true", "its loopback interface lo is down. Bring it up: ip link set lo up"
WITHOUT_ADDRESS = (
    "ip link set lo up && ip address del 127.0.0.1/8 dev lo",
    "no interface has this address. Add it: ip address add 127.0.0.1/8 dev lo",
)


@pytest.mark.parametrize(
    ("tool", "network", "text"),
    [
        ("horovodrun", *DOWN),
        ("horovodrun", *WITHOUT_ADDRESS),
        ("elastic", *DOWN),
        ("hvd test", *DOWN),
        ("hvd doctor", *WITHOUT_ADDRESS),
    ],
)
def test_a_machine_that_cannot_connect_to_itself_is_named_at_once(tool, network, text):
    """The launcher fails at once and starts no rank, because a rank would retry until its time limit."""
    absent = [name for name in ("ip", "unshare") if shutil.which(name) is None]
    need([*absent, *([] if os.geteuid() == 0 else ["root"])], "a network of its own")
    hvd = [sys.executable, "-m", "horovod.tools.cli"]
    words = {
        "horovodrun": [*HOROVODRUN, "-np", "2", "echo", "started"],
        "elastic": [*HOROVODRUN, "-np", "2", "--min-np", "1", "echo", "started"],
        "hvd test": [*hvd, "test", "--json"],
        "hvd doctor": [*hvd, "doctor", "--json"],
    }[tool]
    done = run(["unshare", "--net", "sh", "-c", f'{network}; exec "$@"', "sh", *words])
    if tool == "hvd doctor":
        remedy = text.partition(". ")[2]
        assert json.loads(done.stdout)["advice"][-1] == f"127.0.0.1: {remedy}"
        assert done.returncode == 1
    else:
        assert re.search(r"this machine cannot connect to itself at 127\.0\.0\.1 \([A-Z][\w ]+\): ", done.stderr)
        assert done.stderr.endswith(f"{text}\n")
        assert (done.stderr.count("\n"), done.stdout, done.returncode) == (1, "", 1 if tool == "hvd test" else 2)


def test_far_more_ranks_than_cores_are_one_line_of_warning():
    pinned = [sys.executable, "-c", "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"]
    pinned[-1] += "os.execv(sys.argv[1], sys.argv[1:])"
    for number, lines in ((4, 0), (5, 1)):
        done = run([*pinned, *HOROVODRUN, "-np", str(number), "true"])
        assert done.stderr.count("\n") == lines, done.stderr
    assert done.stderr.startswith("horovodrun: warning: this machine has 1 core for 5 ranks, so ranks wait for a core")
    assert done.returncode == 0
