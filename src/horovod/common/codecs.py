# SPDX-License-Identifier: Apache-2.0
"""The engine's codecs for NumPy arrays: int8, one bit and top-k, with checked arguments.

Formats are described in engine/codecs/codecs.h. Codecs keep no state: residuals belong to the caller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from horovod import _engine
from horovod.common.arrays import address_of

Floats = npt.NDArray[np.float32]
Wire = npt.NDArray[np.uint8]

_MAX_INDEX = 2**31 - 1


def is_finite(values: Floats) -> bool:
    """Return True if no value is NaN or infinite."""
    return _engine.codec_is_finite(_floats("values", values), values.size)


class Codec(ABC):
    """Format of float32 values on the wire, and the loops that convert to it and back."""

    @abstractmethod
    def wire_bytes(self, count: int) -> int:
        """Return the size of the wire for `count` values in bytes; for top-k, the largest size it can have."""

    def encode(
        self, values: Floats, residual: Floats | None = None, left: Floats | None = None, wire: Wire | None = None
    ) -> Wire:
        """Encode p = values + residual and return the wire.

        Args:
            residual: What earlier calls have left over; None stands for zeros.
            left: Array that receives p minus what the wire decodes to. It may be the array `values` or `residual`.
                Where p is not finite, int8 and one bit fill that block of it with NaN, and top-k leaves p as it is.
            wire: Memory to write to, of wire_bytes(values.size) bytes or more, instead of a new array.
        """
        addresses = _floats("values", values), _same_size("residual", residual, values), _target(left, values, residual)
        wire = _wire_target(wire, self.wire_bytes(values.size), values.size)
        return wire[: self._encode(*addresses, values.size, wire)]

    def decode(
        self, wire: Wire, count: int, factor: float = 1.0, out: Floats | None = None, accumulate: bool = False
    ) -> Floats:
        """Return factor * the values of a wire.

        Args:
            out: Array of `count` values to write to, instead of a new one.
            accumulate: Add the values to `out` instead of overwriting it.
        """
        if accumulate and out is None:
            raise ValueError("accumulate=True needs an array `out` to add to")
        out = _result(out, count)
        self._check_wire("wire", wire, count)
        self._decode(address_of(wire), wire.size, count, factor, address_of(out), accumulate)
        return out

    def decode_sum(self, wires: Sequence[Wire], count: int, factor: float = 1.0, out: Floats | None = None) -> Floats:
        """Return factor * the sum of several wires' values, which are added in the order of the wires.

        Top-k multiplies each wire by the factor before it adds. If it refuses a wire, `out` is undefined.
        """
        if len(wires) == 0:
            raise ValueError("wires is empty: there is nothing to sum")
        out = _result(out, count)
        for number, wire in enumerate(wires):
            self._check_wire(f"wires[{number}]", wire, count)
        self._decode_sum(wires, count, factor, address_of(out))
        return out

    def _check_wire(self, name: str, wire: Wire, count: int) -> None:
        _bytes(name, wire)
        if wire.size != self.wire_bytes(count):
            raise ValueError(f"{name} has {wire.size} bytes, but {count} values take {self.wire_bytes(count)}")

    @abstractmethod
    def _encode(self, values: int, residual: int, left: int, count: int, wire: Wire) -> int:
        """Fill the wire and return the number of bytes used."""

    @abstractmethod
    def _decode(self, wire: int, nbytes: int, count: int, factor: float, out: int, accumulate: bool) -> None: ...

    @abstractmethod
    def _decode_sum(self, wires: Sequence[Wire], count: int, factor: float, out: int) -> None: ...


class Int8Codec(Codec):
    """One byte for each value, and a float32 scale for each block of values."""

    def __init__(self, block: int = 256) -> None:
        self.block = _positive("block", block)

    def wire_bytes(self, count: int) -> int:
        return _engine.codec_int8_bytes(_count(count), self.block)

    def _encode(self, values: int, residual: int, left: int, count: int, wire: Wire) -> int:
        _engine.codec_int8_encode(values, residual, left, count, self.block, address_of(wire))
        return self.wire_bytes(count)

    def _decode(self, wire: int, nbytes: int, count: int, factor: float, out: int, accumulate: bool) -> None:
        _engine.codec_int8_decode(wire, count, self.block, factor, out, accumulate)

    def _decode_sum(self, wires: Sequence[Wire], count: int, factor: float, out: int) -> None:
        _engine.codec_int8_decode_sum([address_of(wire) for wire in wires], count, self.block, factor, out)


class OneBitCodec(Codec):
    """The sign of each value, and the mean of |value| for each block of 4,096 values."""

    def wire_bytes(self, count: int) -> int:
        return _engine.codec_onebit_bytes(_count(count))

    def _encode(self, values: int, residual: int, left: int, count: int, wire: Wire) -> int:
        _engine.codec_onebit_encode(values, residual, left, count, address_of(wire))
        return self.wire_bytes(count)

    def _decode(self, wire: int, nbytes: int, count: int, factor: float, out: int, accumulate: bool) -> None:
        _engine.codec_onebit_decode(wire, count, factor, out, accumulate)

    def _decode_sum(self, wires: Sequence[Wire], count: int, factor: float, out: int) -> None:
        _engine.codec_onebit_decode_sum([address_of(wire) for wire in wires], count, factor, out)


class TopKCodec(Codec):
    """Indices and values of the values with the largest magnitudes: about ratio * count of them."""

    def __init__(self, ratio: float) -> None:
        if not 0 < ratio <= 1:
            raise ValueError(f"ratio is {ratio!r}, but must be above 0 and at most 1")
        self.ratio = float(ratio)

    def pairs(self, count: int) -> int:
        """Return how many of `count` values to send; a message may have up to a quarter more."""
        return max(1, round(self.ratio * count)) if _count(count) else 0

    def wire_bytes(self, count: int) -> int:
        return 8 * min(_engine.codec_topk_pairs(self.pairs(count)), count)

    def _encode(self, values: int, residual: int, left: int, count: int, wire: Wire) -> int:
        if count > _MAX_INDEX:
            raise ValueError(f"there are {count} values, but top-k indices reach {_MAX_INDEX}: encode them in parts")
        if count == 0:
            return 0
        capacity = self.wire_bytes(count) // 8
        address = address_of(wire)
        return 8 * _engine.codec_topk_encode(values, residual, left, count, self.pairs(count), capacity, address)

    def _check_wire(self, name: str, wire: Wire, count: int) -> None:
        _bytes(name, wire)  # the engine checks the pairs, whose number depends on the values

    def _decode(self, wire: int, nbytes: int, count: int, factor: float, out: int, accumulate: bool) -> None:
        _engine.codec_topk_decode(wire, nbytes, count, factor, out, accumulate)

    def _decode_sum(self, wires: Sequence[Wire], count: int, factor: float, out: int) -> None:
        for number, wire in enumerate(wires):
            _engine.codec_topk_decode(address_of(wire), wire.size, count, factor, out, number > 0)


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name} is {value!r}, but must be a whole number above 0")
    return int(value)


def _count(count: int) -> int:
    if count < 0:
        raise ValueError(f"count is {count}, but must not be negative")
    return count


def _array(name: str, array: Any, dtype: type[np.generic]) -> None:
    wanted = np.dtype(dtype)
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} is of type {type(array).__name__}, but must be a NumPy array of {wanted}")
    if array.dtype != wanted:
        raise TypeError(f"{name} is an array of {array.dtype}, but must be one of {wanted}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} is not contiguous: use numpy.ascontiguousarray({name})")


def _floats(name: str, array: Any) -> int:
    _array(name, array, np.float32)
    if not array.flags.aligned:
        raise ValueError(f"{name} does not begin at a multiple of 4 bytes in memory: use {name}.copy()")
    return address_of(array)


def _same_size(name: str, array: Any, values: Floats) -> int:
    if array is None:
        return 0
    address = _floats(name, array)
    if array.size != values.size:
        raise ValueError(f"{name} has {array.size} values, but `values` has {values.size}")
    return address


def _target(left: Floats | None, values: Floats, residual: Floats | None) -> int:
    address = _same_size("left", left, values)
    if left is None:
        return 0
    if not left.flags.writeable:
        raise ValueError("left is read-only")
    for name, other in (("values", values), ("residual", residual)):
        if other is not None and address != address_of(other) and np.may_share_memory(left, other):
            raise ValueError(f"left overlaps {name}: pass {name} itself, or an array without common memory")
    return address


def _bytes(name: str, wire: Any) -> None:
    _array(name, wire, np.uint8)
    if wire.ndim != 1:
        raise ValueError(f"{name} has {wire.ndim} dimensions, but must have one")


def _wire_target(wire: Wire | None, nbytes: int, count: int) -> Wire:
    if wire is None:
        return np.empty(nbytes, np.uint8)
    _bytes("wire", wire)
    if wire.size < nbytes:
        raise ValueError(f"wire has {wire.size} bytes, but {count} values need {nbytes}")
    if not wire.flags.writeable:
        raise ValueError("wire is read-only")
    return wire


def _result(out: Floats | None, count: int) -> Floats:
    if out is None:
        return np.empty(_count(count), np.float32)
    _floats("out", out)
    if out.size != _count(count):
        raise ValueError(f"out has {out.size} values, but count is {count}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")
    return out
