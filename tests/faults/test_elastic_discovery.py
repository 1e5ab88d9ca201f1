# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs whose launcher has more descriptors than select() supports, or loses its host discovery thread."""

import os
import sys

from faultkit.elastic import ElasticJob, OfferedHosts
from testkit.launcher import python
from testkit.processes import run

# Program that opens many descriptors, then executes its arguments.
CROWDED = """
import os, resource, sys
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
for _ in range(1100):
    os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)
os.execv(sys.argv[1], sys.argv[1:])
"""

# horovodrun with a host discovery that works at the start, but fails in the thread that repeats it.
BROKEN = """
import threading
from horovod.launcher import launch
from horovod.launcher.elastic import polling

find = polling.Script.__call__

def find_or_fail(script):
    if threading.current_thread() is not threading.main_thread():
        raise KeyError("a mistake of ours")
    return find(script)

polling.Script.__call__ = find_or_fail
launch.run_commandline()
"""


def test_fault_40_hosts_are_discovered_with_more_descriptors_than_select_takes(tmp_path):
    offer = OfferedHosts(tmp_path, "localhost:2")
    flags = ("--min-np", "1", "--max-np", "3", *offer.flags)
    with ElasticJob("numpy", tmp_path, 2, *flags, prefix=python(CROWDED)) as job:
        job.stepped(0, 2)
        assert max(int(number) for number in os.listdir(f"/proc/{job.processes[0].pid}/fd")) > 1100
        offer("localhost:3")
        job.stepped(1, 3)
        job.finish(3)
        shown = job.printed()
    assert "Traceback" not in shown
    assert "--host-discovery-script" not in shown


def test_fault_38_the_discovery_thread_fails_and_the_job_ends():
    words = ["-np", "1", "--min-np", "1", "--host-discovery-script", "echo localhost:1"]
    done = run([*python(BROKEN), *words, sys.executable, "-c", "import time; time.sleep(600)"], limit_s=30)
    assert done.returncode == 1, done.stderr
    assert "the launcher's thread horovod-discovery failed with KeyError: 'a mistake of ours'" in done.stderr
