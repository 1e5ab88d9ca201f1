# SPDX-License-Identifier: Apache-2.0
"""Initialises and reduces once. One rank gets as far as a phase of hvd.init() after the meeting: `rank phase fault`.

Phases: 'met' before anything was connected, else the first system call of that name, which native code makes.
"""

import os
import signal
import sys
import time

import numpy as np
from faultkit import seccomp
from faultkit.reports import report

import horovod.numpy as hvd
from horovod.common.joining import bootstrap

victim, phase, fault = int(sys.argv[1]), sys.argv[2], sys.argv[3]
peers = bootstrap.peers


def fail() -> None:
    if fault == "exit":
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
    os._exit(3)


def after_the_meeting(infos):
    report("reached")
    if phase == "met":
        fail()
    result = peers(infos)
    seccomp.trap(phase, fail)
    return result


signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher ends the survivors, who have something to tell
if int(os.environ["HOROVOD_RANK"]) == victim:
    bootstrap.peers = after_the_meeting
try:
    hvd.init()
    hvd.allreduce(np.ones(10), name="first")
except (ValueError, hvd.HorovodInternalError) as error:
    report("failed", at=time.monotonic(), text=str(error), kind=type(error).__name__)
    raise
