# SPDX-License-Identifier: Apache-2.0
"""Prints what this rank's byte counters and its host's network interface count while collectives move 50 MB."""

import json
import sys
from pathlib import Path

import numpy as np

import horovod.numpy as hvd

TENSOR = np.ones(5_000_000 // 4, np.float32)


def interface() -> tuple[int, int]:
    """Bytes that the host has received and sent; packets that never leave it are not among them."""
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
hvd.barrier()  # the others have looked, too, before anything moves
for _ in range(10):
    hvd.allreduce(TENSOR, name="moved")
hvd.barrier()
after = [*interface(), *snapshot()]
names = ["interface_received", "interface_sent", "received", "sent", "data_sent"]
moved = {name: later - earlier for name, earlier, later in zip(names, before, after, strict=True)}
sys.stdout.write(json.dumps(moved) + "\n")
