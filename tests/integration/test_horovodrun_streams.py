# SPDX-License-Identifier: Apache-2.0
"""Input and output of workers: standard input is empty, and long lines are not broken."""

import subprocess

import pytest
from testkit.launcher import HOROVODRUN, horovodrun, lines_by_rank, python
from testkit.processes import run

import horovod

READ = "import os, sys; print(repr(sys.stdin.read()), repr(os.read(0, 1)))"
LONG = 3 << 20  # bytes, more than any pipe holds
PRINT_LONG = f"""
import os, sys

letter = "ab"[int(os.environ["HOROVOD_RANK"])]
for stream in (sys.stdout, sys.stderr):
    print(letter * {LONG}, file=stream)
"""


@pytest.mark.parametrize("flags", [["-np", "2"], ["-np", "2", "--min-np", "2"]])
def test_standard_input_of_workers_is_at_its_end_and_nothing_is_taken_from_the_launcher_s(flags):
    rest = 'printf typed | (  "$@" && cat )'
    done = run(["sh", "-c", rest, "sh", *HOROVODRUN, *flags, *python(READ)])
    assert done.returncode == 0, done.stderr
    assert lines_by_rank(done.stdout.replace("typed", "")) == {rank: ["'' b''"] for rank in range(2)}
    assert done.stdout.endswith("typed")


def test_workers_of_horovod_run_read_nothing_either():
    def read():
        import os

        return os.read(0, 1)

    assert horovod.run(read, num_proc=2) == [b"", b""]


def test_lines_of_megabytes_stay_whole_on_the_console():
    done = horovodrun("-np", "2", *python(PRINT_LONG), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout[-2000:]
    found = [line.partition(":") for line in sorted(done.stdout.splitlines())]
    assert [(tag, len(text), set(text)) for tag, _, text in found] == [
        ("[0]<stderr>", LONG, {"a"}),
        ("[0]<stdout>", LONG, {"a"}),
        ("[1]<stderr>", LONG, {"b"}),
        ("[1]<stdout>", LONG, {"b"}),
    ]
