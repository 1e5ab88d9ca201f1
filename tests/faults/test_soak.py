# SPDX-License-Identifier: Apache-2.0
"""Fault 34: an elastic job under random faults for a while, with its invariants checked all the time.

HOROVOD_TEST_SOAK_S (seconds, 180), HOROVOD_TEST_SOAK_FAULTS (ends earlier once there were so many), HOROVOD_TEST_SEED.
"""

import os
import time

import pytest
from faultkit.chaos import Soak, write_slots
from faultkit.training import Training

SECONDS = float(os.environ.get("HOROVOD_TEST_SOAK_S", "180"))
FAULTS = int(os.environ.get("HOROVOD_TEST_SOAK_FAULTS", "1000000"))
SEED = int(os.environ.get("HOROVOD_TEST_SEED") or time.time_ns() % 1_000_000)
MOST = {"left": 3, "right": 2}  # slots of hosts, both of them this machine: memory is shared only within one
RECOVERY_S = 60  # a bound for a busy machine; what it takes is printed


@pytest.mark.timeout(SECONDS + 240)
def test_fault_34_random_faults_of_all_kinds(tmp_path):
    print(f"HOROVOD_TEST_SEED={SEED}")
    slots = tmp_path / "slots"
    write_slots(slots, MOST)
    size = sum(MOST.values())
    flags = ("--min-np", "2", "--max-np", str(size), "--blacklist-cooldown-range", "1", "1")
    flags += ("--host-discovery-script", f"cat {slots}")
    env = {"HOROVOD_PEER_TIMEOUT_SECONDS": "2", "HOROVOD_SIMULATE_HOSTS": "1"}
    with Training("numpy", tmp_path, size, flags, env=env) as job:
        soak = Soak(job, SEED, RECOVERY_S, slots, MOST)
        soak.settle()
        until = time.monotonic() + SECONDS
        try:
            while time.monotonic() < until and soak.count < FAULTS:
                soak.strike()
            soak.end()
            soak.goes_on()
            done = job.finish()
        finally:
            print(*soak.log[-30:], sep="\n")
            print(soak.summary(), dict(soak.kinds))
        assert done["epoch"] == len({entry["epoch"] for entry in job.epochs})
