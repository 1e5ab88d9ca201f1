# SPDX-License-Identifier: Apache-2.0
"""The last lines of an elastic job that fails: one block with the cause, after all output of its workers."""

import re

import pytest
from testkit.launcher import horovodrun, python

import horovod

LOAD = """\
import os, signal, sys, time
import horovod.numpy as hvd
FIRST = os.environ["HOROVOD_BIRTH_ID"] == "0"
def load():
    raise FileNotFoundError("no data")
def end(*_):
    print("later words", file=sys.stderr, flush=True)
    os._exit(1)
"""
# All workers wait until the first one has installed its handler.
LISTENS = """\
signal.signal(signal.SIGTERM, end)
if FIRST:
    open("listens", "w").close()
while not os.path.exists("listens"):
    time.sleep(0.01)
"""
RAISE_LINE = 1 + LOAD.splitlines().index('    raise FileNotFoundError("no data")')
REMEDY = (
    "  what to do: check that the path exists on the host of this rank; if another rank makes it, wait for that "
    "(hvd.barrier())"
)


def train(folder, source, min_np="2"):
    """Run a job that fails, and return the lines of its stderr."""
    script = folder / "train.py"
    script.write_text(LOAD + source)
    done = horovodrun("-np", "2", "--min-np", min_np, *python("")[:1], str(script), limit_s=60, cwd=folder)
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()


def block_of(lines):
    """Return the last lines, from the line with the reason on, and the rows of the table at their end."""
    (start,) = [number for number, line in enumerate(lines) if line.startswith("horovodrun: the elastic job ")]
    assert lines.count("who failed, and why:") == 1, lines
    block = lines[start:]
    where = block.index("who failed, and why:")
    heading, *rows = [re.sub(" {2,}", "|", line.strip()) for line in block[where + 1 :]]
    assert heading == "worker|host|slot|why"
    return block[:where], rows


def test_all_workers_raise_in_training(tmp_path):
    # Without the barrier, a worker whose hvd.init() fails because another one has raised would ask for a new rank.
    block, rows = block_of(train(tmp_path, "hvd.init()\nhvd.barrier()\nload()\n"))
    why = "it raised FileNotFoundError: no data (exit code 1)"
    first = re.fullmatch(rf"horovodrun: .*\(first failure: worker ([01]) on localhost: {re.escape(why)}\)", block[0])[1]
    assert rows[0] == f"{first}|localhost|{first}|{why}"
    assert len(rows) == 2
    assert block[1:] == [
        f"  train.py:{len(LOAD.splitlines()) + 3}, in <module>",
        "    load()",
        f"  train.py:{RAISE_LINE}, in load",
        '    raise FileNotFoundError("no data")',
        "  FileNotFoundError: no data",
        REMEDY,
    ]


def test_a_worker_that_is_ended_prints_before_the_block(tmp_path):
    lines = train(tmp_path, LISTENS + "if not FIRST:\n    load()\nhvd.init()\n")
    assert "[0]<stderr>:later words" in lines
    block, rows = block_of(lines)
    assert rows == [f"{worker}|localhost|1|exit code 1" for worker in (1, 2, 3)]
    assert "only 1 workers are possible, and --min-np asks for 2" in block[0]
    assert block[0].endswith("(first failure: worker 1 on localhost: exit code 1)")
    assert f"  train.py:{RAISE_LINE}, in load" in block
    assert block[-2:] == ["  FileNotFoundError: no data", REMEDY]


def test_workers_that_never_met(tmp_path):
    """Let one worker succeed, so that the job ends because another has failed, and is not given up."""
    block, rows = block_of(train(tmp_path, "FIRST or load()\n", min_np="1"))
    assert rows[0] == "1|localhost|1|exit code 1"
    assert block[0] == "horovodrun: the elastic job has failed: worker 1 on localhost: exit code 1"
    assert block[-2:] == ["  FileNotFoundError: no data", REMEDY]


def test_a_function_that_ends_its_process():
    """Check that the error that horovod.run raises has the block, because no traceback comes back."""

    def train():
        import os
        import sys

        import horovod.numpy as hvd

        hvd.init()
        print("last words", file=sys.stderr, flush=True)
        os._exit(7)

    with pytest.raises(RuntimeError) as failed:
        horovod.run(train, num_proc=1, min_num_proc=1)
    text = str(failed.value)
    assert "the elastic job is ended: " in text
    assert "  last lines of its stderr:\n    last words\nwho failed, and why:\n" in text
