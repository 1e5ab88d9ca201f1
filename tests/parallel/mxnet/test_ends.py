# SPDX-License-Identifier: Apache-2.0
"""Ends of ranks: waits for results name a lost rank, and a rank that ends without waiting harms no other rank."""

import json
import sys

from testkit.launcher import horovodrun

LOST = """
import json, os, signal, sys
import mxnet as mx
import horovod.mxnet as hvd

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher ends all ranks when one is lost
hvd.init()
hvd.allreduce(mx.nd.ones(1)).wait_to_read()
if hvd.rank() == 1:
    os._exit(7)
failures = []
for name in ("waiting", "later"):
    try:
        hvd.allreduce(mx.nd.ones(1), name=name).wait_to_read()
    except hvd.HorovodInternalError as error:
        failures.append([type(error).__name__, error.lost_rank, error.operation, str(error)])
with open(sys.argv[1], "w") as file:
    json.dump(failures, file)
"""

UNWAITED = """
import sys
import mxnet as mx
import horovod.mxnet as hvd

hvd.init()
value = mx.nd.ones((256, 256)) / 256
for _ in range(20 * hvd.rank()):
    value = mx.nd.dot(value, value)
total = hvd.allreduce(value, op=hvd.Sum, name="last")
if hvd.rank() == 0:  # the other is at its end by now, with everything still in its queue
    with open(sys.argv[1], "w") as file:
        file.write(str(round(float(total.sum().asscalar()))))
"""


def launch(source, folder):
    """Run a program on two ranks. Return its exit status, and what it wrote to its file."""
    program, answer = folder / "program.py", folder / "answer"
    program.write_text(source, encoding="utf-8")
    done = horovodrun("-np", "2", sys.executable, str(program), str(answer), limit_s=120)
    assert answer.exists(), done.stdout + done.stderr
    return done.returncode, answer.read_text(encoding="utf-8")


def test_a_lost_rank_is_named(tmp_path):
    status, answer = launch(LOST, tmp_path)
    assert status == 7
    waiting, later = json.loads(answer)
    assert waiting[:3] == ["HorovodInternalError", 1, "allreduce.waiting"]
    assert "rank 1" in waiting[3]
    assert later[:3] == ["HorovodInternalError", 1, "allreduce.later"]


def test_a_rank_that_ends_without_waiting_harms_nobody(tmp_path):
    assert launch(UNWAITED, tmp_path) == (0, "512")
