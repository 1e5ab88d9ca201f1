# SPDX-License-Identifier: Apache-2.0
"""Tables of docs/performance-gpus.md, made from the results that benchmarks/gpu.py has stored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchkit import tables
from benchkit.units import size_text, time_text

Row = dict[str, Any]
# Headings by way; ways without measurements are not shown.
_PEERS = {"backend": "our backend", "staged": "through the host", "gloo": "Gloo", "nccl": "NCCL, sockets"}
_DDP = {"backend": "DDP over horovod", "gloo": "DDP over Gloo", "nccl": "DDP over NCCL, sockets"}
_VIEWS = {"buckets": "with bucket views", "kept": "with bucket views, gradients kept"}
_MODELS = {"resnet50": "ResNet-50, batch 32", "gpt": "GPT, 124 M parameters"}
_TEXT = """\
Processes that share a GPU take turns on its processors. With two ranks a collective takes at least one change of turns
for the rank that comes last, and two for the other; one takes some 0.14 ms on an H200. `ours` is the median of the
slowest rank, from the call until the GPU is done; the column of a peer says how many times as long it takes. `in a
row`: for each of 20 calls, without waiting for the GPU in between. NCCL refuses to share a GPU; here a different
`NCCL_HOSTID` makes it take the other ranks for other hosts."""
_MPS = """\
NVIDIA's MPS lets the work of several processes run side by side on a GPU, so that they need not take turns ([how to
start it](gpu-shared.md#ranks-that-share-a-gpu)). All of the same run, on the same GPU. The 4 KB, and with four ranks
the 1 MB, went through host memory here, since no larger tensor had come before."""
_NCCL = """\
Where each rank has a GPU of its own, NCCL moves the bytes. Here two ranks on one GPU stand for that, with NCCL over
sockets between them, so that these figures compare programs and not networks: the same step with
`DistributedOptimizer`, with DDP over our backend of torch.distributed and over torch's own; and a step of a transformer
in JAX, through the GPU's memory and by NCCL, beside JAX's own `psum`."""
_MESSAGES = (
    "A message of torch.distributed from rank to rank, until the receiver's GPU has it (half of the way to and fro):"
)
_GROUPS = """\
Tensors that are reduced together reach NCCL in one call, through a buffer, or in a call each, without a copy
(`HOROVOD_NCCL_FUSED_BYTES`); the default follows from these times."""
_STEPS = """\
A training step (bf16, SGD), ten in a row without waiting for the GPU. `alone`: as many processes on the GPU that do not
communicate. `with bucket views`: `gradient_as_bucket_view=True`; `gradients kept`: `zero_grad(set_to_none=False)`
besides, which costs time of its own."""


def section(folder: Path) -> list[str]:
    lines: list[str] = []
    for path in sorted(folder.glob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
        about = next(row for row in rows if "device" in row)
        plain, together = ([row for row in rows if row.get("mps", False) is mps] for mps in (False, True))
        lines += ["", "## Ranks that share a GPU", "", f"{about['device']}, torch {about['torch']}, {about['date']}."]
        lines += ["", _TEXT, "", *_allreduce(plain), "", _STEPS, "", *_steps(plain)]
        if together:
            lines += ["", "### Under MPS", "", _MPS, "", *_allreduce(together), "", *_steps(together)]
        lines += _by_nccl(plain)
    return lines


def _allreduce(rows: Sequence[Row]) -> list[str]:
    shown = _measured(rows, _PEERS, "allreduce")
    headings = ["ranks", "size", "ours", "in a row", "GPU memory moved in a row", *shown.values()]
    table = []
    for ours in (row for row in rows if row.get("what") == "allreduce" and row["way"] == "khorovod"):
        peers = [_ratio(_find(rows, way, ours), ours) for way in shown]
        moved = _moved(ours) / ours["in_a_row_s"] / 1e9
        times = [time_text(1e6 * ours[key]) for key in ("median_s", "in_a_row_s")]
        share = f"{moved:.0f} GB/s" if ours["bytes"] >= 1 << 20 else ""
        table.append([str(ours["ranks"]), size_text(ours["bytes"]), *times, share, *peers])
    return tables.markdown(headings, table)


def _moved(row: Row) -> float:
    """Return the bytes moved: each rank reads its tensor and fills its slot, reads all slots and writes the sum."""
    return float(row["bytes"]) * row["ranks"] * (row["ranks"] + 3)


def _steps(rows: Sequence[Row]) -> list[str]:
    shown = _measured(rows, _DDP, "step")
    views = _measured(rows, _VIEWS, "step")
    table = []
    for ours in (row for row in rows if row.get("what") == "step" and row["way"] == "khorovod"):
        alone = _find(rows, "alone", ours)
        more = f"{100 * (ours['median_s'] / alone['median_s'] - 1):+.1f}%" if alone else ""
        peers = [_ratio(_find(rows, way, ours), ours) for way in shown]
        times = [_ms(row) for row in (alone, ours)]
        in_views = [_ms(_find(rows, way, ours)) for way in views]
        table.append([_MODELS[ours["model"]], str(ours["ranks"]), *times, more, *in_views, *peers])
    headings = ["model", "ranks", "alone", "ours", "communication adds", *views.values(), *shown.values()]
    return tables.markdown(headings, table)


def _by_nccl(rows: Sequence[Row]) -> list[str]:
    """Return tables of steps with NCCL, compared with the framework's own way."""
    ways = _measured(rows, {"hvd-nccl": "DistributedOptimizer", "backend-nccl": "DDP over horovod"}, "step")
    if not ways:
        return []
    ways["nccl"] = "DDP over NCCL"
    table = []
    for own in (row for row in rows if row.get("what") == "step" and row["way"] == "nccl"):
        found = [_find(rows, way, own) for way in ways]
        if any(found[:-1]):
            table.append([_MODELS[own["model"]], str(own["ranks"]), *(_ms(row, 0) for row in found)])
    lines = ["", "### By NCCL", "", _NCCL, "", *tables.markdown(["model", "ranks", *ways.values()], table)]
    jax = {"khorovod": "ours", "hvd-nccl": "ours, by NCCL", "nccl": "JAX's psum, by NCCL", "alone": "alone"}
    shown = _measured(rows, jax, "jax")
    for own in (row for row in rows if row.get("what") == "jax" and row["way"] == "khorovod"):
        times = [_ms(_find(rows, way, own)) for way in shown]
        lines += ["", *tables.markdown(["JAX", "ranks", *shown.values()], [["transformer", str(own["ranks"]), *times]])]
    return lines + _groups(rows) + _messages(rows)


def _groups(rows: Sequence[Row]) -> list[str]:
    fused = [row for row in rows if row.get("what") == "groups" and row["way"] == "hvd-fused"]
    if not fused:
        return []
    table = [
        [f"{row['tensors']} x {size_text(row['bytes'])}", _ms(row), _ms(_find(rows, "hvd-each", row))] for row in fused
    ]
    return ["", _GROUPS, "", *tables.markdown(["tensors", "in one call", "in a call each"], table)]


def _messages(rows: Sequence[Row]) -> list[str]:
    ways = {"backend": "through GPU memory", "backend-staged": "through host memory", "nccl": "torch's NCCL"}
    ours = [row for row in rows if row.get("what") == "messages" and row["way"] == "backend"]
    if not ours:
        return []
    table = [[size_text(row["bytes"]), *(_ms(_find(rows, way, row), 2) for way in ways)] for row in ours]
    return ["", _MESSAGES, "", *tables.markdown(["message", *ways.values()], table)]


def _measured(rows: Sequence[Row], ways: dict[str, str], what: str) -> dict[str, str]:
    there = {row["way"] for row in rows if row.get("what") == what}
    return {way: heading for way, heading in ways.items() if way in there}


def _find(rows: Sequence[Row], way: str, like: Row) -> Row | None:
    same = ("what", "ranks", "bytes", "model")
    return next(
        (row for row in rows if row.get("way") == way and all(row.get(key) == like.get(key) for key in same)), None
    )


def _ms(row: Row | None, digits: int = 1) -> str:
    return f"{1e3 * row['median_s']:.{digits}f} ms" if row else ""


def _ratio(peer: Row | None, ours: Row) -> str:
    return f"{peer['median_s'] / ours['median_s']:.1f}x" if peer else ""
