# SPDX-License-Identifier: Apache-2.0
"""Programs that end while some of their threads still wait for other ranks."""

from testkit.launcher import horovodrun, python

# The long switch interval keeps the GIL in the main thread. So the daemon thread, whose operation has failed, gets the
# GIL only when the interpreter is ending.
DAEMON = """
import contextlib, sys, threading
import numpy as np
import horovod.numpy as hvd
from horovod.common.exceptions import HorovodInternalError

hvd.init()
started = threading.Event()

def wait():
    handle = hvd.allreduce_async(np.ones(3), name=f"of rank {hvd.rank()} alone")
    started.set()
    with contextlib.suppress(HorovodInternalError):
        hvd.synchronize(handle)

threading.Thread(target=wait, daemon=True).start()
started.wait()
hvd.barrier()
sys.setswitchinterval(1000)
print("end")
"""


def test_a_daemon_thread_that_waits_does_not_take_the_process_down():
    done = horovodrun("-np", "2", *python(DAEMON))
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split()) == ["[0]<stdout>:end", "[1]<stdout>:end"]
