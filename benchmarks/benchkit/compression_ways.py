# SPDX-License-Identifier: Apache-2.0
"""Compared ways to exchange gradients over slow links: Khorovod's methods, and DDP's hooks over Gloo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OURS, PEER, ALONE = "khorovod", "gloo", "none"
START_AFTER = 2  # dense steps before PowerSGD begins: the minimum that torch's hook accepts
POWERSGD_RANK = 4


@dataclass(frozen=True)
class Way:
    """Way to make a training step.

    Args:
        name: Name in tables and pictures.
        library: OURS, PEER, or ALONE for a step without exchange.
        method: For OURS the name in hvd.Compression, for PEER the name of its hook; empty for dense gradients.
        arguments: Arguments of the method; None if the name in hvd.Compression is a compressor.
        of_us: Khorovod's way that must be faster than this one.
    """

    name: str
    library: str
    method: str = ""
    arguments: Mapping[str, Any] | None = field(default=None, hash=False)
    of_us: str = ""


BOUND = Way("no exchange", ALONE)
DENSE = Way("khorovod, dense", OURS)
FP16 = Way("khorovod, fp16", OURS, "fp16")
INT8 = Way("khorovod, int8", OURS, "int8", {})
TOPK = Way("khorovod, topk(0.01)", OURS, "topk", {"ratio": 0.01})
POWERSGD = Way("khorovod, powersgd(4)", OURS, "powersgd", {"rank": POWERSGD_RANK, "start_after": START_AFTER})
WAYS = (
    BOUND,
    DENSE,
    FP16,
    Way("khorovod, bf16", OURS, "bf16"),
    INT8,
    Way("khorovod, onebit", OURS, "onebit", {}),
    TOPK,
    POWERSGD,
    Way("DDP, dense", PEER, of_us=DENSE.name),
    Way("DDP, fp16 hook", PEER, "fp16", of_us=FP16.name),
    Way("DDP, PowerSGD hook", PEER, "powersgd", of_us=POWERSGD.name),
)
BY_NAME = {way.name: way for way in WAYS}

# How many times the dense exchange's time above a step without exchange must exceed each way's, by link.
TARGETS: dict[str, dict[str, float]] = {
    "100 Mbit/s": {FP16.name: 1.9, INT8.name: 3.5, TOPK.name: 10.0, POWERSGD.name: 10.0},
    "1 Gbit/s": {FP16.name: 1.0, INT8.name: 1.0},
}
ONE_HOST_LIMIT = 1.02  # limit of a compressed step's time relative to the dense step, on one host
