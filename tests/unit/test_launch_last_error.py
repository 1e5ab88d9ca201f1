# SPDX-License-Identifier: Apache-2.0
"""Summary of a failed worker: the user's frames of its last traceback, the error, and the remedy."""

import re
import subprocess
import sys

import pytest
from testkit.speed import patience

from horovod.launcher.output.last_error import LastError
from horovod.launcher.start.post_mortem import failure_text
from horovod.launcher.start.remedies import remedy_for

CHAINED = """
import json

def load(text):
    try:
        return json.loads(text)
    except ValueError as error:
        raise RuntimeError("no config") from error

def main():
    load("{")

{call}
"""
CRASH = "import ctypes\ndef crash():\n    ctypes.string_at(0)\ncrash()\n"


def error_of(tmp_path, source, *flags):
    """Run a program; return the LastError that has read its stderr between other lines."""
    path = tmp_path / "train.py"
    path.write_text(source)
    done = subprocess.run([sys.executable, *flags, str(path)], capture_output=True, timeout=patience(30), check=False)
    error = LastError()
    error.feed([b"a warning", b"  indented", *done.stderr.splitlines(), b"another line"])
    return error


def last_of(tmp_path, source, *flags):
    return error_of(tmp_path, source, *flags).last()


def test_frames_of_the_user_and_causes_are_shown_and_others_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = last_of(tmp_path, CHAINED.replace("{call}", "main()"))
    assert error.summary() == [
        "train.py:13, in <module>",
        "  main()",
        "train.py:11, in main",
        '  load("{")',
        "train.py:8, in load",
        '  raise RuntimeError("no config") from error',
        "RuntimeError: no config",
        "caused by: json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1)",
    ]
    assert error.error == "RuntimeError: no config"


def test_an_error_raised_in_a_library_ends_with_the_number_of_its_frames(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    summary = last_of(tmp_path, "import json\njson.loads('{')\n").summary()
    assert summary[:3] == ["train.py:2, in <module>", "  json.loads('{')", "(3 frames of Python)"]


def test_a_crash_shows_the_stack_of_the_thread_that_crashed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = last_of(tmp_path, CRASH, "-X", "faulthandler")
    assert error.summary() == [
        "train.py:4, in <module>",
        "train.py:3, in crash",
        "(1 frame of Python)",
        "Fatal Python error: Segmentation fault",
    ]


def test_a_deep_recursion_stays_short(tmp_path):
    summary = last_of(tmp_path, "def f(n):\n    return f(n + 1)\nf(0)\n").summary()
    assert len(summary) < 40
    assert summary[-1].startswith("RecursionError: ")


def test_the_last_of_two_tracebacks_that_have_nothing_to_do_with_each_other(tmp_path):
    source = "import traceback\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()\n{}['x']\n"
    assert last_of(tmp_path, source).summary()[-1] == "KeyError: 'x'"


AT_EXIT = """
import atexit

def close(file):
    raise OSError("no space left: the tracker's last data")

atexit.register(close, "log")
{reason}
"""
MISSING = "raise FileNotFoundError('data.csv\\nis not there')"


@pytest.mark.parametrize(
    ("reason", "reported", "shown"),
    [
        # Only the first line of the message is taken from the traceback.
        (MISSING, r"raised FileNotFoundError: data.csv\nis not there", "FileNotFoundError: data.csv"),
        (f"raise OSError({'x' * 300!r})", f"raised OSError: {'x' * 180}...", f"OSError: {'x' * 300}"),
        ("class Mine(OSError): __module__ = 'my.errors'\nraise Mine", "raised Mine", "my.errors.Mine"),
    ],
)
def test_tracebacks_of_handlers_at_exit_do_not_hide_the_error_that_the_rank_reported(
    tmp_path, monkeypatch, reason, reported, shown
):
    monkeypatch.chdir(tmp_path)
    error = error_of(tmp_path, AT_EXIT.replace("{reason}", reason))
    assert error.last().error.startswith("OSError: no space left")
    text = failure_text("rank 1 failed first: exit code 1", "exit code 1", error, ["another line"], reported)
    lines = text.splitlines()
    assert re.fullmatch(r"  train.py:\d+, in <module>", lines[1])
    assert lines[3] == f"  {shown}"
    assert "tracker" not in text
    assert ("what to do: check that the path exists" in text) == ("FileNotFound" in reported)


def test_the_rank_that_torch_distributed_puts_before_each_line_is_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "import sys, traceback as t\nsys.excepthook = lambda *e: print('[rank1]: ' + ''.join("
    source += "t.format_exception(*e)).replace(chr(10), chr(10) + '[rank1]: '), file=sys.stderr)\n{}['x']\n"
    assert last_of(tmp_path, source).summary() == ["train.py:3, in <module>", "  {}['x']", "KeyError: 'x'"]


def test_a_reported_error_without_a_traceback_is_shown_with_the_last_lines(tmp_path):
    error = error_of(tmp_path, AT_EXIT.replace("{reason}", ""))
    text = failure_text("rank 1", "exit code 1", error, ["one"], "raised ModuleNotFoundError: no x")
    assert text.splitlines()[:4] == [
        "rank 1",
        "  it raised ModuleNotFoundError: no x",
        "  last lines of its stderr:",
        "    one",
    ]
    assert "install it for the Python that runs the workers" in text


def test_an_exception_that_the_program_has_printed_before_sys_exit_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "import traceback\ntry:\n    {}['x']\nexcept KeyError:\n    traceback.print_exc()\n"
    text = failure_text("rank 1", "exit code 3", error_of(tmp_path, source), [], "raised SystemExit: 3")
    assert text.splitlines() == [
        "rank 1", "  it raised SystemExit: 3", "  train.py:3, in <module>", "    {}['x']", "  KeyError: 'x'"
    ]  # fmt: skip


def test_without_a_traceback_the_last_lines_stand_for_it():
    assert failure_text("rank 1 failed first: exit code 3", "exit code 3", LastError(), ["one", "two"]) == (
        "rank 1 failed first: exit code 3\n  last lines of its stderr:\n    one\n    two"
    )
    assert failure_text("rank 1", "exit code 3", LastError(), []) == "rank 1; it wrote nothing to stderr"


FINISHED = (
    "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. Rank 1 finished while rank 0 still "
    "calls 'allreduce.x'. "
)
EXITED = "HorovodInternalError: Horovod has been shut down: rank 2 (on host 'a') called shutdown or exited, and this"
LOST = "ProcessGroupError: allreduce.x: rank 3 is lost (on host 'a'): its process ended"


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("killed by signal 9 (SIGKILL), often out of memory", "", "dmesg"),
        ("killed by signal 10 (SIGUSR1)", "", "install a handler"),
        ("killed by signal 24 (SIGXCPU)", "", "ulimit -t"),
        ("killed by signal 25 (SIGXFSZ)", "", "ulimit -f"),
        ("killed by signal 11 (SIGSEGV)", "Fatal Python error: Segmentation fault", "native code crashed"),
        ("killed by signal 4 (SIGILL)", "Fatal Python error: Illegal instruction", "another processor"),
        ("killed by signal 7 (SIGBUS)", "Fatal Python error: Bus error", "a full /dev/shm"),
        ("killed by signal 6 (SIGABRT)", "terminate called after throwing", "aborted itself"),
        ("killed by signal 6 (SIGABRT)", "Fatal Python error: Aborted", "aborted itself"),
        ("exit code 1", "Fatal Python error: init_fs_encoding: failed to get the Python codec", "PYTHONHOME"),
        ("exit code 1", FINISHED, "outside of conditions such as `if hvd.rank() == 0`"),
        ("exit code 1", EXITED, "after the same operations"),
        ("exit code 1", LOST, "it failed first"),
        ("exit code 1", "HorovodInternalError: rank 0 raised FileNotFoundError: x", "the rank that this error names"),
        ("exit code 1", "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'", "built for CPUs alone"),
        ("exit code 1", "AssertionError: Torch not compiled with CUDA enabled", "built for CPUs alone"),
        ("exit code 1", "RuntimeError: No CUDA GPUs are available", "this rank sees no GPU"),
        ("exit code 1", "RuntimeError: Found no NVIDIA driver on your system.", "NVIDIA's driver"),
        (
            "exit code 1",
            "torch.OutOfMemoryError: CUDA out of memory. Tried",
            "smaller batch; ranks that use the same GPU",
        ),
        ("exit code 1", "RuntimeError: CUDA error: out of memory", "ranks that use the same GPU"),
        ("exit code 1", "RuntimeError: CUDA error: invalid device ordinal", "device_count()"),
        ("exit code 1", "MemoryError", "smaller batch, or fewer ranks"),
        ("exit code 1", "RuntimeError: can't start new thread", "ulimit -u"),
        ("exit code 1", "ModuleNotFoundError: No module named 'x'", "every host"),
        ("exit code 1", "ModuleNotFoundError: No module named 'mine'", "in PYTHONPATH"),
        ("exit code 1", "ImportError: libx.so.1: cannot open shared object file: No such file", "LD_LIBRARY_PATH"),
        ("exit code 1", "ImportError: cannot import name 'a' from 'b' (/b.py)", "has no such name"),
        ("exit code 1", "OSError: [Errno 28] No space left on device", "free space"),
        ("exit code 1", "OSError: [Errno 24] Too many open files", "ulimit -n"),
        ("exit code 1", "OSError: [Errno 23] Too many open files in system", "fs.file-max"),
        ("exit code 1", "BlockingIOError: [Errno 11] Unable to lock file, errno = 11, 'Resource...", "of its own"),
        ("exit code 1", "libgomp: Thread creation failed: Resource temporarily unavailable", "ulimit -u"),
        ("exit code 1", "FileNotFoundError: [Errno 2] No such file or directory: 'x'", "hvd.barrier()"),
        ("exit code 127", "/usr/bin/env: use -[v]S to pass options in shebang lines", "carriage return"),
    ],
)
def test_the_remedy_fits_the_cause(how, error, words):
    assert words in remedy_for(how, error)


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: my bug",
        "BlockingIOError: [Errno 11] Resource temporarily unavailable",
        "ImportError: cannot import name 'a' from partially initialized module 'b' (most likely due to a circular...",
        "ImportError: numpy.core.multiarray failed to import",
        "HorovodMismatchError: allreduce 'x': rank 0 reduces float32, rank 1 float64",
        "HorovodInternalError: broadcast_object 'x': rank 0 could not pickle its object",
    ],
)
def test_there_is_no_remedy_where_none_is_known_to_fit(error):
    assert remedy_for("exit code 1", error) is None


def test_a_call_that_only_rank_0_makes_is_told_from_a_lost_rank():
    assert "lost" not in remedy_for("exit code 1", FINISHED)
    assert "batches" not in remedy_for("exit code 1", LOST)
