# SPDX-License-Identifier: Apache-2.0
"""Rank 1 ends in the way given and takes some seconds for it, while the other ranks wait in an allreduce."""

import atexit
import contextlib
import json
import os
import sys
import threading
import time

way, linger_s = sys.argv[1], float(sys.argv[2])
if way == "an early handler of atexit" and os.environ["HOROVOD_RANK"] == "1":
    atexit.register(time.sleep, linger_s)  # this handler runs after Horovod's own

import numpy as np  # noqa: E402

import horovod.numpy as hvd  # noqa: E402

pair = hvd.ProcessSet([0, 1])
hvd.init(process_sets=[pair] if way == "in a process set" else [])


def report(**found):
    print(json.dumps({"rank": hvd.rank(), "at": time.time(), **found}), flush=True)


def linger():
    """Take time to end, like a tracker that sends its last data."""
    time.sleep(linger_s)
    if way == "a handler of atexit":
        raise OSError("the tracker's server has gone")  # its traceback is the last output of the rank


def ignore(*_):
    """Replace sys.excepthook, like a library that shows exceptions itself and does not call the previous hook."""


def leave():
    """End rank 1 in the way given."""
    if way == "a joined thread":
        threading.Thread(target=linger).start()
    elif not way.startswith("an early"):
        atexit.register(linger)
    if way == "another hook":
        sys.excepthook = ignore
    if way == "beside a thread in a collective":
        threading.Thread(target=wait_in_vain, daemon=True).start()
        while not waiting:
            time.sleep(0.001)
    report(way=way)
    if way == "sys.exit":
        sys.exit(3)
    if way == "control characters":
        raise ValueError("\x1b[31mred\r\n\0" + 10_000 * "x")
    raise ValueError("boom")


waiting = []


def wait_in_vain():
    waiting.append(True)
    try:
        hvd.allreduce(np.ones(2), name="of a thread")
    except hvd.HorovodInternalError as error:
        report(thread=str(error))


def harmless():
    """Do things that look like the end of a program but are not."""
    for target in (sys.exit, lambda: 1 / 0):
        thread = threading.Thread(target=target, args=[5] if target is sys.exit else [])
        thread.start()
        thread.join()
    with contextlib.suppress(SystemExit):
        sys.exit(6)
    try:
        raise ValueError("handled")
    except ValueError as error:
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)


if way == "harmless":
    hvd.allreduce(np.ones(2), name="all are here")
    harmless()
    hvd.allreduce(np.ones(2), name="after it")
    atexit.register(hvd.allreduce, np.ones(2), name="at exit")
    sys.exit(0)
try:
    hvd.allreduce(np.ones(2), name="all are here")  # other ranks may still be in it when rank 1 ends
    if hvd.rank() == 1:
        leave()
    hvd.allreduce(np.ones(2), name="never", process_set=pair if pair.included() else hvd.global_process_set)
except hvd.HorovodInternalError as error:
    report(error=str(error), lost=error.lost_rank)
    if hvd.rank() == 2:  # a program that hides the reason from the launcher
        raise RuntimeError("training failed") from error
    raise
