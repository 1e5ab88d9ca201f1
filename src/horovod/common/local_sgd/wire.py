# SPDX-License-Identifier: Apache-2.0
"""Formats of float32 values on the wire: fp32, bf16, int8 and int4 (E3M0). The functions are pure.

int8 and int4 send one float32 scale for each block of 256 values: the largest absolute value of the block. int8 sends
127 steps of it on each side of 0. int4 sends a sign and three bits of exponent: 0, or the scale times 2^-6 to 2^0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from horovod.common.local_sgd.fragments import BLOCK

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
_EXPONENTS = 7  # number of magnitudes of int4 above 0


def wire_bytes(count: int, wire: str) -> int:
    """Return how many bytes this many values take on the wire."""
    scales = 4 * -(-count // BLOCK)
    return {"fp32": 4 * count, "bf16": 2 * count, "int8": count + scales, "int4": (count + 1) // 2 + scales}[wire]


def encode(values: Floats, wire: str) -> Bytes:
    """Return finite values as bytes."""
    if wire == "fp32":
        return np.array(values, np.float32).view(np.uint8)
    if wire == "bf16":
        return _to_bf16(values).view(np.uint8)
    scales, ratios = _scaled(values)
    codes = _int8_codes(ratios) if wire == "int8" else _packed(_int4_codes(ratios))
    return np.concatenate([scales.view(np.uint8), codes.view(np.uint8)])


def decode(data: Bytes, count: int, wire: str) -> Floats:
    """Return the values that `encode` made bytes from, rounded as the format rounds."""
    if wire == "fp32":
        return np.array(data.view(np.float32))
    if wire == "bf16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    blocks = -(-count // BLOCK)
    scales = data[: 4 * blocks].copy().view(np.float32)
    codes = data[4 * blocks :]
    ratios = codes.view(np.int8).astype(np.float32) / np.float32(127) if wire == "int8" else _int4_ratios(codes, count)
    return ratios * np.repeat(scales, BLOCK)[:count]


def _to_bf16(values: Floats) -> npt.NDArray[np.uint16]:
    bits = np.array(values, np.float32).view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1)))
    # Rounding up must not turn the largest finite values into infinity.
    largest = (bits & np.uint32(0x80000000)) | np.uint32(0x7F7F0000)
    return (np.where((rounded & np.uint32(0x7F800000)) == 0x7F800000, largest, rounded) >> 16).astype(np.uint16)


def _scaled(values: Floats) -> tuple[Floats, Floats]:
    """Return each block's largest absolute value, and all values as ratios to it."""
    blocks = -(-values.size // BLOCK)
    padded = np.zeros(blocks * BLOCK, np.float32)
    padded[: values.size] = values
    table = padded.reshape(blocks, BLOCK)
    scales = np.abs(table).max(axis=1, initial=0).astype(np.float32)
    divisors = np.where(scales == 0, np.float32(1), scales)
    ratios = np.clip(table / divisors[:, None], -1, 1).astype(np.float32)
    return scales, ratios.reshape(-1)[: values.size]


def _int8_codes(ratios: Floats) -> npt.NDArray[np.int8]:
    codes: npt.NDArray[np.int8] = np.rint(ratios * np.float32(127)).astype(np.int8)
    return codes


def _int4_codes(ratios: Floats) -> Bytes:
    """Return 0 for zero, 1 to 7 for 2^-6 to 2^0, plus 8 for a negative value; the nearest magnitude counts."""
    fractions, exponents = np.frexp(np.abs(ratios))  # a fraction is from 0.5 to below 1
    magnitudes = exponents + (fractions >= 0.75) + (_EXPONENTS - 1)
    half = np.abs(ratios) >= np.float32(2.0**-_EXPONENTS)  # from half of the smallest magnitude on, round up to it
    codes = np.where(half, np.clip(magnitudes, 1, _EXPONENTS), 0).astype(np.uint8)
    return codes | (np.signbit(ratios) & (codes > 0)).astype(np.uint8) << np.uint8(3)


def _packed(codes: Bytes) -> Bytes:
    if codes.size % 2:
        codes = np.append(codes, np.uint8(0))
    return codes[0::2] | codes[1::2] << np.uint8(4)


_RATIOS: npt.NDArray[Any] = np.array([0.0] + [2.0 ** (code - _EXPONENTS) for code in range(1, 8)], np.float32)
_INT4_VALUES: npt.NDArray[Any] = np.concatenate([_RATIOS, -_RATIOS])


def _int4_ratios(codes: Bytes, count: int) -> Floats:
    pairs = np.empty(2 * codes.size, np.uint8)
    pairs[0::2], pairs[1::2] = codes & 15, codes >> 4
    values: Floats = _INT4_VALUES[pairs[:count]]
    return values
