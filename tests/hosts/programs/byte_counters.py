# SPDX-License-Identifier: Apache-2.0
"""Print this rank's byte counters and those of its host's network interface while collectives move 50 MB."""

import json
import sys
from pathlib import Path

import numpy as np

import horovod.numpy as hvd

TENSOR = np.ones(5_000_000 // 4, np.float32)


def interface() -> tuple[int, int]:
    """Return the bytes that the host has received and sent, without packets that stay on the host."""
    [line] = [line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("eth0:")]
    fields = line.split(":")[1].split()
    return int(fields[0]), int(fields[8])


def snapshot() -> tuple[int, int, int]:
    counters = hvd.counters()
    sent = counters["data_bytes_sent"] + counters["control_bytes_sent"]
    received = counters["data_bytes_received"] + counters["control_bytes_received"]
    return received, sent, counters["data_bytes_sent"]


hvd.init()
hvd.allreduce(TENSOR, name="warm-up")  # makes the connections
hvd.barrier()
before = [*interface(), *snapshot()]
hvd.barrier()  # all ranks have taken their snapshot before any data moves
for _ in range(10):
    hvd.allreduce(TENSOR, name="moved")
hvd.barrier()
after = [*interface(), *snapshot()]
names = ["interface_received", "interface_sent", "received", "sent", "data_sent"]
moved = {name: later - earlier for name, earlier, later in zip(names, before, after, strict=True)}
sys.stdout.write(json.dumps(moved) + "\n")
