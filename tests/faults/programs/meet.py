# SPDX-License-Identifier: Apache-2.0
"""Initialise and reduce once, while one rank fails in a phase of hvd.init(): arguments `rank phase fault`.

Phases after the rendezvous: 'met' before any connection is made, or the first system call of the given name, which
native code makes.
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


# The launcher terminates the survivors, but they still have to report the error.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if int(os.environ["HOROVOD_RANK"]) == victim:
    bootstrap.peers = after_the_meeting
try:
    hvd.init()
    hvd.allreduce(np.ones(10), name="first")
except (ValueError, hvd.HorovodInternalError) as error:
    report("failed", at=time.monotonic(), text=str(error), kind=type(error).__name__)
    raise
