# SPDX-License-Identifier: Apache-2.0
"""horovodrun with real workers that need no engine: environment, output, exit codes, failures."""

import contextlib
import json
import os
import re
import socket
import subprocess
import threading
import time

import psutil
import pytest
from testkit.families import living
from testkit.launcher import HOROVODRUN, horovodrun, lines_by_rank, python
from testkit.processes import run
from testkit.speed import patience

PRINT_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


def environments(*words, env=None):
    done = horovodrun(*words, *python(PRINT_ENVIRONMENT), env=env)
    assert done.returncode == 0, done.stderr
    return {rank: json.loads(lines[0]) for rank, lines in lines_by_rank(done.stdout).items()}


def test_every_worker_knows_its_place():
    found = environments("-np", "2", "--cycle-time-ms", "3", env={"OLDPWD": "/x", "CUDA_VISIBLE_DEVICES": "7"})
    assert set(found) == {0, 1}
    for rank, env in found.items():
        assert env["HOROVOD_RANK"] == env["HOROVOD_LOCAL_RANK"] == str(rank)
        assert env["HOROVOD_SIZE"] == env["HOROVOD_LOCAL_SIZE"] == "2"
        assert (env["HOROVOD_CROSS_RANK"], env["HOROVOD_CROSS_SIZE"]) == ("0", "1")
        assert (env["HOROVOD_HOSTNAME"], env["HOROVOD_GLOO_RENDEZVOUS_ADDR"]) == ("localhost", "127.0.0.1")
        assert env["HOROVOD_CONTROLLER"] == env["HOROVOD_CPU_OPERATIONS"] == "gloo"
        assert env["HOROVOD_GLOO_IFACE"] == env["NCCL_SOCKET_IFNAME"] == "lo"
        assert env["HOROVOD_CYCLE_TIME"] == "3"
        assert env["PYTHONUNBUFFERED"] == "1"
        assert env["RANK"] == env["LOCAL_RANK"] == str(rank)
        assert env["WORLD_SIZE"] == env["LOCAL_WORLD_SIZE"] == "2"
        assert env["MASTER_ADDR"] == "127.0.0.1"
        assert "OLDPWD" not in env
        assert env["CUDA_VISIBLE_DEVICES"] == "7"
    assert found[0]["_HOROVOD_SECRET_KEY"] == found[1]["_HOROVOD_SECRET_KEY"]
    assert found[0]["MASTER_PORT"] == found[1]["MASTER_PORT"]
    with socket.create_server(("", int(found[0]["MASTER_PORT"]))):
        pass


IN_SLURM = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_TASKS_PER_NODE": "1", "SLURM_JOB_NODELIST": "n1"}


@pytest.mark.parametrize(("flags", "env"), [(["--min-np", "1"], {}), (["-H", "localhost:1"], IN_SLURM)])
def test_gpus_that_the_environment_lists_or_rules_out_are_those_of_the_workers(flags, env):
    """Both variables reach the workers of an elastic job, and of a Slurm job whose nodes -H replaces."""
    chosen = {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_CUDA_VISIBLE_DEVICES": "2,3"}
    found = environments("-np", "1", *flags, env=chosen | env)[0]
    assert {name: found.get(name) for name in chosen} == chosen


def test_each_job_has_its_own_secret():
    secrets = {environments("-np", "1")[0]["_HOROVOD_SECRET_KEY"] for _ in range(2)}
    assert len(secrets) == 2
    assert environments("-np", "1", env={"_HOROVOD_SECRET_KEY": "mine"})[0]["_HOROVOD_SECRET_KEY"] != "mine"


def test_simulated_hosts_give_a_layout_of_several():
    # RANK was set by an outer horovodrun, MASTER_PORT by the user.
    outer = {"MASTER_PORT": "1234", "RANK": "5", "_HOROVOD_TORCHRUN_VARIABLES": "RANK=5"}
    found = environments("-np", "3", "-H", "a:2,b:1", env={"HOROVOD_SIMULATE_HOSTS": "1"} | outer)
    assert [(found[r]["RANK"], found[r]["LOCAL_RANK"]) for r in range(3)] == [("0", "0"), ("1", "1"), ("2", "0")]
    assert {found[r]["MASTER_PORT"] for r in range(3)} == {"1234"}
    layout = [(found[r]["HOROVOD_HOSTNAME"], found[r]["HOROVOD_LOCAL_RANK"]) for r in range(3)]
    assert layout == [("a", "0"), ("a", "1"), ("b", "0")]
    assert [found[r]["HOROVOD_CROSS_SIZE"] for r in range(3)] == ["2", "1", "2"]
    assert "HOROVOD_SIMULATE_HOSTS" not in found[0]


def test_fault_29_arguments_reach_the_worker_as_they_are(tmp_path):
    words = ["; touch pwned", "$(touch pwned)", "`x`", "a b", "*", "'\"", "\\", "new\nline", "", "é", "x" * 10_000]
    done = horovodrun("-np", "1", *python("import json, sys; print(json.dumps(sys.argv[1:]))"), *words, cwd=tmp_path)
    assert json.loads(lines_by_rank(done.stdout)[0][0]) == words
    assert list(tmp_path.iterdir()) == []


def test_output_is_prefixed_and_streams_stay_apart():
    source = r"import sys; sys.stdout.write('a\nb\rc\r\nlast'); sys.stderr.write('e1\ne2\n')"
    done = horovodrun("-np", "2", *python(source))
    assert done.returncode == 0
    assert lines_by_rank(done.stdout) == {rank: ["a", "c", "last"] for rank in range(2)}  # "c" overwrites "b"
    assert lines_by_rank(done.stderr, "stderr") == {rank: ["e1", "e2"] for rank in range(2)}
    assert done.stdout.count("\n") == 6


def test_no_output_is_lost():
    source = "import sys\nfor i in range(20000): print(i)"
    done = horovodrun("-np", "3", *python(source))
    expected = [str(i) for i in range(20000)]
    assert lines_by_rank(done.stdout) == dict.fromkeys(range(3), expected)


def test_output_comes_while_the_worker_runs(launch):
    source = "import signal; print('now'); signal.pause()"
    process = launch("-np", "1", *python(source), stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "[0]<stdout>:now\n"
    assert process.poll() is None
    process.terminate()
    process.wait(timeout=20)


def test_timestamps():
    done = horovodrun("-np", "1", "-prefix-timestamp", *python("print('x')"))
    assert re.fullmatch(r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\[0\]<stdout>:x\n", done.stdout)


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_the_prefix_is_coloured_on_a_terminal_alone(env, coloured):
    ours, terminal = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        done = horovodrun("-np", "2", *python("print('x')"), env=env, stdout=terminal)
        os.close(terminal)
        shown = b"".join(iter(lambda: _read_of(screen), b""))  # a terminal delivers its output in parts
    assert done.returncode == 0
    assert (b"\x1b[36m[0]<stdout>:\x1b[0mx" in shown) == coloured
    assert (b"[0]<stdout>:x" in shown) != coloured


BARS_AND_TRACEBACKS = """
import os, sys, traceback
for percent in range(101):
    sys.stdout.write(f"\\r{percent:3d}%|{'#' * percent}")
    sys.stdout.flush()
sys.stdout.write("\\n")
try:
    {}["key"]
except KeyError:
    traceback.print_exc()
"""


def test_a_progress_bar_stays_one_line_on_a_terminal():
    ours, terminal = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        shown = []
        reader = threading.Thread(target=lambda: shown.extend(iter(lambda: _read_of(screen), b"")))
        reader.start()
        env = {"TERM": "xterm", "NO_COLOR": "1"}
        done = horovodrun("-np", "2", *python(BARS_AND_TRACEBACKS), env=env, stdout=terminal)
        os.close(terminal)
        reader.join(20)
    assert done.returncode == 0
    text = b"".join(shown).decode()
    # The number of visible bar states depends on timing. The tests of in_place check how one state follows another.
    lines = [line.rpartition("\x1b[K")[2].strip("\r") for line in text.split("\n")]
    assert sorted(line for line in lines if line) == [f"[{rank}]<stdout>:100%|{'#' * 100}" for rank in range(2)]
    # Both ranks print this traceback, and it is shown once.
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert re.search(r"KeyError: 'key' \(the same traceback as of rank [01], folded; --verbose shows it\)", done.stderr)


def _read_of(screen):
    try:
        return screen.read(1 << 16) or b""
    except OSError:  # the other end is closed
        return b""


def test_elsewhere_the_last_state_of_a_bar_is_one_line_and_tags_can_be_left_out():
    done = horovodrun("-np", "2", "--tag", "never", "--verbose", *python(BARS_AND_TRACEBACKS))
    assert done.stdout.splitlines() == [f"100%|{'#' * 100}"] * 2
    assert done.stderr.count("Traceback (most recent call last)") == 2
    assert "<stderr>" not in done.stderr


@pytest.mark.parametrize(("mode", "text", "code"), [(0o644, "command not found", 127), (0o755, "not a program", 126)])
def test_a_python_file_is_not_a_command_and_what_was_meant_is_said(tmp_path, mode, text, code):
    script = tmp_path / "train me.py"
    script.write_text("print(1)\n")
    script.chmod(mode)
    name = script.name if code == 127 else str(script)
    done = horovodrun("-np", "2", name, "--epochs", "1", cwd=tmp_path)
    meant = f"did you mean this? horovodrun ... python '{name}' --epochs 1"
    assert done.stderr == f"horovodrun: error: {text}: {name!r}; {meant}\n"
    assert done.returncode == code


@pytest.mark.parametrize("flags", [[], ["--min-np", "1"]])
def test_a_script_whose_interpreter_is_missing_names_it(tmp_path, flags):
    script = tmp_path / "train"
    script.write_bytes(b"#!/bin/bash\r\ntrue\r\n")
    script.chmod(0o755)
    done = horovodrun("-np", "2", *flags, str(script))
    reason = "its first line names the interpreter '/bin/bash\\r', which does not exist here"
    assert done.stderr.startswith(
        f"horovodrun: error: cannot run {str(script)!r}: {reason}; the file has the line ends"
    )
    assert (done.stderr.count("\n"), done.returncode) == (1, 127)


def test_output_files_hold_the_bytes_as_written(tmp_path):
    source = r"""
import os, sys
sys.stdout.buffer.write(b'\xff\rx ' + os.environ['HOROVOD_RANK'].encode())
print('e', file=sys.stderr)
"""
    done = horovodrun("-np", "11", "--output-filename", str(tmp_path / "deep" / "out"), *python(source))
    assert done.returncode == 0
    directories = sorted(path.name for path in (tmp_path / "deep" / "out").iterdir())
    assert directories == [f"rank.{rank:02d}" for rank in range(11)]
    assert (tmp_path / "deep/out/rank.07/stdout").read_bytes() == b"\xff\rx 7"
    assert (tmp_path / "deep/out/rank.10/stderr").read_bytes() == b"e\n"


FAIL_ON_ONE = """
import os, sys, signal
if os.environ["HOROVOD_RANK"] == "1":
    print("first", file=sys.stderr)
    {how}
signal.pause()
"""


@pytest.mark.parametrize(
    ("how", "code", "text", "where"),
    [
        ("sys.exit(7)", 7, "exit code 7", "    first"),
        ("raise ValueError('my bug')", 1, "ValueError: my bug", "  <string>:5, in <module>"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, r"signal 9 \(SIGKILL\), often out of memory", "    first"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, r"signal 11 \(SIGSEGV\)", "  <string>:5, in <module>"),
    ],
)
def test_the_first_failure_is_shown_and_ends_the_job(how, code, text, where):
    done = horovodrun("-np", "3", *python(FAIL_ON_ONE.format(how=how)))
    assert done.returncode == code
    assert re.search(rf"horovodrun: rank 1 \(host localhost, pid \d+\) failed first:(.|\n)*{text}", done.stderr)
    block = done.stderr[done.stderr.index("horovodrun: rank 1") :]
    assert f"\n{where}\n" in block
    table = [line.split() for line in block.splitlines()[-4:]]
    assert table[0][:2] == ["rank", "host"]
    assert (table[1][:2], table[1][-1]) == (["1", "localhost"], "(first)")
    assert [row[0] for row in table[2:]] == ["0", "2"]


@pytest.mark.promise
def test_fault_16_the_cause_comes_first_and_the_others_do_not_drown_it(tmp_path):
    # Rank 1 dies last, so the launcher sees the exits of the other ranks, which report the lost peer, first. The ranks
    # wait for each other before they end, because the launcher waits only one second for the cause.
    source = """
import atexit, os, sys, time
folder, rank = sys.argv[1], os.environ["HOROVOD_RANK"]
class HorovodInternalError(RuntimeError): pass
def leave():
    open(os.path.join(folder, f"{rank}.{os.getpid()}"), "w").close()
    while len(os.listdir(folder)) < 3: time.sleep(0.001)
    others = [name.partition(".")[2] for name in os.listdir(folder) if not name.startswith("1.")]
    while rank == "1" and any(os.path.exists(f"/proc/{pid}") for pid in others): time.sleep(0.001)
    os._exit(1)
atexit.register(leave)
if rank == "1": raise KeyError("the real cause")
raise HorovodInternalError("rank 1 was lost")
"""
    done = horovodrun("-np", "3", *python(source), str(tmp_path))
    report = done.stderr[done.stderr.index("horovodrun: rank") :]
    assert report.startswith("horovodrun: rank 1 ")
    assert "KeyError: 'the real cause'" in report
    assert done.stderr.count("Traceback") == 1  # the traceback in the rank's output; the summary has only its frames
    assert done.stderr.count("HorovodInternalError: rank 1 was lost (traceback folded") == 2
    assert done.returncode == 1


def test_stubborn_workers_are_killed_after_the_grace(tmp_path):
    source = """
import os, signal, sys
ready = os.path.join(sys.argv[1], "ready")
if os.environ["HOROVOD_RANK"] == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(ready, "w").close()
    while True: signal.pause()
while not os.path.exists(ready): pass
sys.exit(5)
"""
    started = time.monotonic()
    done = horovodrun("-np", "2", *python(source), str(tmp_path))
    assert done.returncode == 5
    assert 5 <= time.monotonic() - started < patience(20)


def test_what_a_worker_leaves_running_is_ended_with_the_job():
    source = "import subprocess; p = subprocess.Popen(['sleep', '1000']); print(p.pid)"
    done = horovodrun("-np", "1", *python(source))
    assert done.returncode == 0
    pid = int(lines_by_rank(done.stdout)[0][0])
    with contextlib.suppress(psutil.NoSuchProcess):
        assert not living([psutil.Process(pid)])


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["-np", "1", "no-such-program"], 127, "command not found: 'no-such-program'"),
        (["-np", "1", "/etc/passwd"], 126, "permission denied: '/etc/passwd'"),
        (["-np", "3", "-H", "localhost:2", "true"], 2, "Requested more processes"),
        (["-np", "1", "-H", "local host:2", "true"], 2, "Invalid host input"),
        (["-np", "1", "--hostfile", "/no/such/file", "true"], 2, "hostfile '/no/such/file' (--hostfile): No such file"),
        (["--hostfile", "/etc", "true"], 2, "the hostfile '/etc' (--hostfile): Is a directory; name a file of lines"),
        (["-np", "1", "--output-filename", "", "true"], 2, "--output-filename is empty: name a directory"),
        (["-np", "1", "--cycle-time-ms", "-1", "true"], 2, "--cycle-time-ms='-1' is not valid: expected a number of"),
        (["-np", "1", "--network-interfaces", "no0", "true"], 2, "no network interface 'no0'"),
        (["-np", "1", "--min-np", "2", "true"], 2, "--min-np 2, -np 1 and --max-np 1 must be in ascending order"),
        (["-np", "two", "true"], 2, "'two' is not an integer"),
        (["-np", "100000000", "true"], 2, "must be between 1 and 1048576, not 100000000"),
        (["-np", "1000000", "true"], 2, "1000000 processes are too many for this machine"),
    ],
)
def test_mistakes_are_one_line_without_a_traceback(words, code, text):
    # The limit is high because the launcher assigns a million ranks, which takes seconds, before it counts them.
    done = horovodrun(*words, limit_s=55)
    assert done.returncode == code
    assert text in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("limit", "code"), [("-Sn 100", 0), ("-n 100", 2)])
def test_open_files_are_raised_as_far_as_allowed_or_named(limit, code):
    """30 workers need more than 100 open files: two pipes and a connection each."""
    words = ["sh", "-c", f'ulimit {limit}; exec "$@"', "sh", *HOROVODRUN, "-np", "30", "sh", "-c", "ulimit -n"]
    done = run(words)
    assert done.returncode == code, done.stderr
    if code == 0:
        assert set(lines_by_rank(done.stdout)) == set(range(30))
        assert {line for [line] in lines_by_rank(done.stdout).values()} == {"100"}  # the limit that the user set
    else:
        assert re.search(r"30 workers need 1\d\d open files, and this user may have 100 \(ulimit -Hn\)", done.stderr)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        (
            "HOROVOD_CYCLE_TIME",
            "inf",
            "HOROVOD_CYCLE_TIME='inf' is not valid: expected a number of milliseconds from 0",
        ),
        ("HOROVOD_GLOO_IFACE", "nosuch", "no network interface 'nosuch' on this machine"),
        ("HOROVOD_HOSTNAME", "a\udcff", r"HOROVOD_HOSTNAME='a\udcff' is not valid"),
    ],
)
def test_fault_30_a_bad_variable_stops_the_launch(name, value, text):
    done = horovodrun("-np", "1", "true", env={name: value})
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_the_largest_values_and_the_interface_that_the_user_named_reach_the_workers(tmp_path):
    source = """
import json, os
import numpy as np
import horovod.numpy as hvd
from horovod.common.context import default_context
hvd.init()
assert hvd.allreduce(np.ones(1000), op=hvd.Sum).sum() == 2000
print(os.environ["HOROVOD_GLOO_IFACE"], json.loads(default_context.world.describe())["fusion_threshold"])
"""
    flags = ["--fusion-threshold-mb", str(1 << 20), "--cycle-time-ms", "3600000", "--timeline-filename"]
    done = horovodrun(
        "-np", "2", *flags, str(tmp_path / "t\udcff"), *python(source), env={"HOROVOD_GLOO_IFACE": "lo,lo"}
    )
    assert done.returncode == 0, done.stderr
    assert lines_by_rank(done.stdout) == {rank: [f"lo {1 << 40}"] for rank in range(2)}
    assert os.listdir(os.fsencode(tmp_path)) == [b"t\xff"]


def test_version_and_check_build():
    import horovod

    assert horovodrun("--version").stdout == f"{horovod.__version__}\n"
    boxes = horovodrun("-cb")
    assert boxes.returncode == 0
    assert re.search(r"Available Frameworks:\n    \[[X ]\] TensorFlow\n", boxes.stdout)
    assert re.search(r"Available Tensor Operations:\n    \[[X ]\] NCCL\n", boxes.stdout)


def test_workers_meet_at_the_rendezvous():
    source = """
import os
from horovod.common.rendezvous.client import meet
from horovod.common.topology import decode_secret
e = os.environ
world = meet(e["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(e["HOROVOD_GLOO_RENDEZVOUS_PORT"]),
             decode_secret(e["_HOROVOD_SECRET_KEY"]), int(e["HOROVOD_RANK"]), int(e["HOROVOD_SIZE"]), 0,
             {"pid": os.getpid()}, 20)
print(world.world_id, len(world.infos))
"""
    done = horovodrun("-np", "4", *python(source))
    assert done.returncode == 0, done.stderr
    assert len({tuple(lines) for lines in lines_by_rank(done.stdout).values()}) == 1


@pytest.mark.parametrize("code", [0, 9])
def test_a_worker_that_ends_before_meeting_is_named_to_those_who_wait(code, gate):
    source = f"""
import os, sys
from horovod.common.rendezvous.client import meet
from horovod.common.topology import decode_secret
e = os.environ
if e["HOROVOD_RANK"] == "1":
    {gate.pass_through}  # until rank 0 would outlive the signal that ends the job
    sys.exit({code})
import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)
{gate.let_one_pass}
try:
    meet(e["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(e["HOROVOD_GLOO_RENDEZVOUS_PORT"]),
         decode_secret(e["_HOROVOD_SECRET_KEY"]), 0, 2, 0, {{}}, 20)
except RuntimeError as error:
    print(error)
"""
    done = horovodrun("-np", "2", *python(source))
    assert done.returncode == code
    assert f"[0]<stdout>:rank 1 on localhost has ended: exit code {code}" in done.stdout


STARTS_LATE = """
import os, numpy, horovod.numpy as hvd
if os.environ["HOROVOD_RANK"] == "1":
    {wait}
hvd.init()
print("done")
"""


def test_a_line_tells_on_a_terminal_who_has_started_and_goes_away(launch, gate):
    """Only a terminal shows the status line. Other tests of this file would fail if it appeared in a pipe."""
    import pty

    ours, theirs = pty.openpty()
    words = ["-np", "2", *python(STARTS_LATE.format(wait=gate.pass_through))]
    process = launch(*words, env={"TERM": "xterm"}, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    shown = b""
    while b"1 of 2 ranks have called hvd.init()" not in shown:
        shown += os.read(ours, 4096)
    gate.open()
    with os.fdopen(ours, "rb", buffering=0) as screen:  # the status line is redrawn until rank 1 has started
        shown += b"".join(iter(lambda: _read_of(screen), b""))
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0, shown
    assert sorted(output.split()) == [b"[0]<stdout>:done", b"[1]<stdout>:done"]
    assert b"\x1b[?25h" in shown  # the cursor is visible again
