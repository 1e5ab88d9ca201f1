# SPDX-License-Identifier: Apache-2.0
"""Fault 34: an elastic job under random faults, with its invariants checked all the time.

HOROVOD_TEST_SOAK_S is its duration in seconds (180). HOROVOD_TEST_SOAK_FAULTS ends it earlier, after that many faults.
HOROVOD_TEST_SEED chooses the faults.
"""

import os
import time

import pytest
from faultkit.chaos import Soak, write_slots
from faultkit.training import Training

SECONDS = float(os.environ.get("HOROVOD_TEST_SOAK_S", "180"))
FAULTS = int(os.environ.get("HOROVOD_TEST_SOAK_FAULTS", "1000000"))
SEED = int(os.environ.get("HOROVOD_TEST_SEED") or time.time_ns() % 1_000_000)
MOST = {"left": 3, "right": 2}  # slots of hosts, both of which are this machine but share memory only within themselves
RECOVERY_S = 60  # a limit for a busy machine; the actual time is printed


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
