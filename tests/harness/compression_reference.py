# SPDX-License-Identifier: Apache-2.0
"""Compression formats in NumPy, written from their specification, to check codecs against."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
_F = np.float32


def int8_encode(p: Array, block: int) -> bytes:
    scales, quanta = [], []
    with np.errstate(all="ignore"):
        for start in range(0, len(p), block):
            part = p[start : start + block]
            largest = np.abs(part).max()
            inverse = _F(127) / largest
            if not np.isfinite(largest):
                scale, quantum = _F(np.nan), np.zeros(len(part), np.int8)
            elif np.isinf(inverse):
                scale, quantum = _F(0), np.zeros(len(part), np.int8)
            else:
                scale = largest / _F(127)
                quantum = np.clip(np.rint(part * inverse), -127, 127).astype(np.int8)
            scales.append(scale)
            quanta.append(quantum)
    return np.array(scales, _F).tobytes() + np.concatenate(quanta).tobytes()


def int8_decode(wire: bytes, count: int, block: int) -> Array:
    blocks = -(-count // block)
    scales = np.frombuffer(wire[: 4 * blocks], _F)
    quanta = np.frombuffer(wire[4 * blocks :], np.int8)
    with np.errstate(over="ignore"):
        return quanta.astype(_F) * np.repeat(scales, block)[:count]


def onebit_encode(p: Array) -> bytes:
    means = []
    for start in range(0, len(p), 4096):
        part = np.abs(p[start : start + 4096])
        means.append(_F(part.mean(dtype=np.float64)) if np.isfinite(part).all() else _F(np.nan))
    with np.errstate(invalid="ignore"):
        return np.array(means, _F).tobytes() + np.packbits(p < 0, bitorder="little").tobytes()


def onebit_decode(wire: bytes, count: int) -> Array:
    blocks = -(-count // 4096)
    means = np.repeat(np.frombuffer(wire[: 4 * blocks], _F), 4096)[:count]
    negative = np.unpackbits(np.frombuffer(wire[4 * blocks :], np.uint8), bitorder="little")[:count]
    return np.where(negative, -means, means)


def topk_encode(p: Array, ratio: float) -> bytes:
    if not np.isfinite(p).all():
        return np.int32(0).tobytes() + _F(np.nan).tobytes()
    count = len(p)
    wanted = max(1, round(ratio * count))
    most = min(count, math.ceil(1.25 * wanted))
    magnitudes = np.abs(p)
    sample = np.sort(magnitudes[topk_sample(count)])[::-1]
    threshold = sample[min(len(sample), max(1, math.floor(wanted * len(sample) / count + 0.5))) - 1]
    chosen = np.flatnonzero((magnitudes >= threshold) & (magnitudes > 0))
    if not len(chosen):
        return np.int32(0).tobytes() + p[:1].tobytes()
    if len(chosen) > most:
        chosen = np.sort(np.argsort(-magnitudes, kind="stable")[:most])
    return chosen.astype(np.int32).tobytes() + p[chosen].tobytes()


def topk_sample(count: int) -> list[int]:
    if count <= 1024:
        return list(range(count))
    size = max(1024, count // 100)
    width = count // size
    return [number * count // size + (((number * 2654435761 % 2**32) * width) >> 32) for number in range(size)]


def topk_decode(wire: bytes, count: int) -> Array:
    pairs = len(wire) // 8
    result = np.zeros(count, _F)
    # Padding repeats index 0 with the value 0, which changes nothing.
    np.add.at(result, np.frombuffer(wire[: 4 * pairs], np.int32), np.frombuffer(wire[4 * pairs :], _F))
    return result
