# SPDX-License-Identifier: Apache-2.0
"""Codecs compared with a reference implementation in NumPy, and the input that they refuse. No engine is used."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.common.codecs import Codec, Int8Codec, OneBitCodec, TopKCodec, is_finite

F32 = np.float32
ONE_BIT_BLOCK = 4096
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the reference divides by 0 and subtracts NaN


def int8_wire(p: np.ndarray, block: int) -> np.ndarray:
    scales, quotients = [], []
    for begin in range(0, p.size, block):
        part = p[begin : begin + block]
        largest = np.abs(part).max()
        inverse = F32(127) / largest
        if not np.isfinite(part).all():
            scale, q = F32(np.nan), np.zeros(part.size)
        elif not np.isfinite(inverse):
            scale, q = F32(0), np.zeros(part.size)
        else:
            scale, q = largest / F32(127), np.clip(np.rint(part * inverse), -127, 127)
        scales.append(scale)
        quotients.append(q.astype(np.int8))
    parts = [np.array(scales, F32).view(np.uint8), *(q.view(np.uint8) for q in quotients)]
    return np.concatenate(parts)


def int8_values(wire: np.ndarray, count: int, block: int) -> np.ndarray:
    blocks = -(-count // block)
    scales = wire[: 4 * blocks].view(F32)
    return wire[4 * blocks :].view(np.int8).astype(F32) * np.repeat(scales, block)[:count]


def mean_of_magnitudes(part: np.ndarray) -> np.float32:
    """Return the mean magnitude; like the codec, sum in sixteen interleaved parts and then fold these in halves."""
    padded = np.zeros(-(-part.size // 16) * 16, F32)
    padded[: part.size] = np.abs(part)
    for dtype in (F32, np.float64):  # float64 is used if the sum is too large for float32
        sums = np.zeros(16, dtype)
        for row in padded.reshape(-1, 16):
            sums = sums + row.astype(dtype)
        for half in (8, 4, 2, 1):
            sums = sums[:half] + sums[half : 2 * half]
        if np.isfinite(sums[0]):
            break
    return F32(sums[0] / dtype(part.size)) if np.isfinite(part).all() else F32(np.nan)


def onebit_wire(p: np.ndarray) -> np.ndarray:
    means = [mean_of_magnitudes(p[begin : begin + ONE_BIT_BLOCK]) for begin in range(0, p.size, ONE_BIT_BLOCK)]
    return np.concatenate([np.array(means, F32).view(np.uint8), np.packbits(p < 0, bitorder="little")])


def onebit_values(wire: np.ndarray, count: int) -> np.ndarray:
    blocks = -(-count // ONE_BIT_BLOCK)
    means = np.repeat(wire[: 4 * blocks].view(F32), ONE_BIT_BLOCK)[:count]
    return np.where(np.unpackbits(wire[4 * blocks :], count=count, bitorder="little"), -means, means)


def reference(codec: Codec, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the encoded message and the values that it decodes to."""
    if isinstance(codec, Int8Codec):
        wire = int8_wire(p, codec.block) if p.size else np.zeros(0, np.uint8)
        return wire, int8_values(wire, p.size, codec.block)
    wire = onebit_wire(p) if p.size else np.zeros(0, np.uint8)
    return wire, onebit_values(wire, p.size)


@st.composite
def gradients(draw: st.DrawFn, max_count: int = 9000, finite: bool = False) -> np.ndarray:
    count = draw(st.one_of(st.integers(0, 40), st.integers(0, max_count), st.sampled_from([255, 256, 257, 4096, 4097])))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = random.standard_normal(count).astype(F32) * F32(draw(st.sampled_from([1, 1e-42, 3e-37, 1e-3, 5e37])))
    values[random.random(count) < draw(st.sampled_from([0, 0.5, 0.99]))] *= 0
    odd = draw(st.sampled_from([None, None, None, np.nan, np.inf, -np.inf]))
    if odd is not None and count and not finite:
        values[random.integers(count)] = odd
    return values


blocks = st.sampled_from([1, 3, 16, 100, 256, 5000])
dense_codecs = st.one_of(st.builds(Int8Codec, blocks), st.builds(OneBitCodec))


@settings(deadline=None)
@given(codec=dense_codecs, values=gradients(), feedback=st.booleans(), data=st.data())
def test_dense_wires_are_those_of_the_reference(codec: Codec, values: np.ndarray, feedback: bool, data: Any) -> None:
    residual = np.random.default_rng(values.size).standard_normal(values.size).astype(F32) if feedback else None
    p = values if residual is None else values + residual
    wire, decoded = reference(codec, p)
    own = values.copy()
    left = data.draw(st.sampled_from([np.empty_like(own), own]))
    made = codec.encode(own, residual, left)
    assert codec.wire_bytes(values.size) == made.size
    np.testing.assert_array_equal(made, wire)
    np.testing.assert_array_equal(codec.decode(made, values.size), decoded)
    np.testing.assert_array_equal(left, p - decoded)


@settings(deadline=None)
@given(codec=dense_codecs, first=gradients(), wires=st.integers(1, 4), factor=st.sampled_from([1.0, 0.5, 1 / 3]))
def test_sums_are_added_in_the_order_of_the_wires(codec: Codec, first: np.ndarray, wires: int, factor: float) -> None:
    random = np.random.default_rng(1)
    several = [first, *(random.standard_normal((wires - 1, first.size)).astype(F32))]
    encoded = [codec.encode(values) for values in several]
    total = reference(codec, several[0])[1]
    for values in several[1:]:
        total = total + reference(codec, values)[1]
    np.testing.assert_array_equal(codec.decode_sum(encoded, first.size, factor), total * F32(factor))
    out = np.ones(first.size, F32)
    codec.decode(encoded[0], first.size, factor, out, accumulate=True)
    np.testing.assert_array_equal(out, F32(1) + reference(codec, first)[1] * F32(factor))


@settings(deadline=None)
@given(codec=dense_codecs, values=gradients(finite=True))
def test_dense_codecs_lose_nothing_to_rounding_but_the_last_place(codec: Codec, values: np.ndarray) -> None:
    left = np.empty_like(values)
    decoded = codec.decode(codec.encode(values, left=left), values.size)
    largest = np.abs(values).max(initial=0)
    np.testing.assert_allclose(decoded.astype(float) + left, values, rtol=0, atol=2 * np.spacing(largest))


@settings(deadline=None)
@given(values=gradients(finite=True), ratio=st.sampled_from([0.001, 0.01, 0.3, 1.0]), feedback=st.booleans())
def test_topk_sends_the_largest_and_conserves_the_sum_exactly(values: np.ndarray, ratio: float, feedback: bool) -> None:
    codec = TopKCodec(ratio)
    residual = values[::-1].copy() * F32(0.5) if feedback else None
    p = values if residual is None else values + residual
    left = np.empty_like(values)
    wire = codec.encode(values, residual, left)
    pairs = wire.size // 8
    indices, sent = wire[: 4 * pairs].view(np.int32), wire[4 * pairs :].view(F32)
    k = max(1, round(ratio * values.size))
    assert (1 if values.size else 0) <= pairs <= math.ceil(1.25 * k)
    assert (np.diff(indices) > 0).all()
    np.testing.assert_array_equal(sent, p[indices])
    assert np.abs(left).max(initial=0) <= np.abs(sent).min(initial=np.inf)
    np.testing.assert_array_equal(codec.decode(wire, values.size) + left, p)
    np.testing.assert_array_equal(left[indices], 0)


def test_topk_sends_about_as_much_as_asked_for() -> None:
    values = np.random.default_rng(0).standard_cauchy(3_000_000).astype(F32)
    codec = TopKCodec(0.01)
    exact = np.sort(np.abs(values))[-codec.pairs(values.size)]
    wire = codec.encode(values)
    assert abs(wire.size / 8 / codec.pairs(values.size) - 1) < 0.2
    smallest = np.abs(wire[wire.size // 2 :].view(F32)).min()
    assert smallest == pytest.approx(exact, rel=0.2)
    np.testing.assert_array_equal(codec.encode(values), wire)


def test_topk_takes_the_first_of_equal_values_and_no_zeros() -> None:
    codec = TopKCodec(0.01)
    wire = codec.encode(np.full(10_000, -2, F32))
    np.testing.assert_array_equal(wire[:500].view(np.int32), np.arange(125))
    zeros = np.zeros(10_000, F32)
    assert codec.encode(zeros).tolist() == [0] * 8
    zeros[77] = 1e-45
    assert codec.encode(zeros)[:4].view(np.int32).tolist() == [77]


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_reach_the_other_side(odd: float) -> None:
    values = np.ones(10_000, F32)
    assert is_finite(values)
    values[4321] = odd
    assert not is_finite(values)
    for codec in (Int8Codec(), OneBitCodec(), TopKCodec(0.01)):
        wire = codec.encode(values)
        decoded = codec.decode(wire, values.size)
        assert not is_finite(decoded)
        assert not is_finite(codec.decode_sum([codec.encode(np.ones_like(values)), wire], values.size))
        assert np.isfinite(decoded).sum() >= values.size - ONE_BIT_BLOCK
    assert TopKCodec(0.5).encode(values).size == 8


@settings(deadline=None)
@given(wire=st.binary(max_size=96), count=st.integers(0, 40), start=st.integers(0, 3))
def test_topk_reads_any_message_or_refuses_it_as_a_whole(wire: bytes, count: int, start: int) -> None:
    memory = np.frombuffer(bytes(start) + wire, np.uint8)[start:]
    pairs = memory.size // 8
    out = np.full(count + 8, 7, F32)
    indices = memory[: 4 * pairs].copy().view(np.int32)
    is_valid = memory.size % 8 == 0 and bool(((indices >= 0) & (indices < count)).all())
    if is_valid:
        TopKCodec(0.5).decode(memory, count, out=out[:count])
    else:
        with pytest.raises(ValueError, match="top-k message"):
            TopKCodec(0.5).decode(memory, count, out=out[:count])
        assert (out == 7).all()
    assert (out[count:] == 7).all()


@settings(deadline=None)
@given(indices=st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 41), max_size=6), accumulate=st.booleans())
def test_topk_refuses_indices_out_of_range_by_name(indices: list[int], accumulate: bool) -> None:
    wire = np.concatenate([np.array(indices, np.int32).view(np.uint8), np.ones(len(indices), F32).view(np.uint8)])
    out = np.full(40, 7, F32)
    wrong = [index for index in indices if not 0 <= index < 40]
    if wrong:
        with pytest.raises(ValueError, match=f"has index {wrong[0]}, but there are 40 values"):
            TopKCodec(0.5).decode(wire, 40, 1.0, out, accumulate)
        assert (out == 7).all()
    else:
        TopKCodec(0.5).decode(wire, 40, 1.0, out, accumulate)
        assert out.sum() == len(indices) + (280 if accumulate else 0)


def test_wires_can_be_written_to_memory_of_the_caller() -> None:
    values = np.random.default_rng(0).standard_normal((30, 1000)).astype(F32)
    for codec in (Int8Codec(), OneBitCodec(), TopKCodec(0.01)):
        memory = np.zeros(codec.wire_bytes(values.size) + 1, np.uint8)[1:]  # at an odd address
        wire = codec.encode(values, wire=memory)
        assert wire.base is memory or np.shares_memory(wire, memory)
        np.testing.assert_array_equal(wire, codec.encode(values))
        np.testing.assert_array_equal(codec.decode(wire, values.size), codec.decode(wire.copy(), values.size))


VALUES = np.ones(100, F32)
READ_ONLY = np.ones(100, F32)
READ_ONLY.flags.writeable = False
LARGER = np.ones(200, F32)
BYTES = np.zeros(200, np.uint8)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: Int8Codec(0), ValueError, "block is 0"),
        (lambda: Int8Codec(2.5), ValueError, "block is 2.5"),
        (lambda: TopKCodec(0), ValueError, "ratio is 0"),
        (lambda: TopKCodec(1.5), ValueError, "ratio is 1.5"),
        (lambda: TopKCodec(math.nan), ValueError, "ratio is nan"),
        (lambda: Int8Codec().wire_bytes(-1), ValueError, "count is -1"),
        (lambda: OneBitCodec().encode([1.0]), TypeError, "values is of type list"),
        (lambda: OneBitCodec().encode(np.ones(3)), TypeError, "values is an array of float64"),
        (lambda: OneBitCodec().encode(LARGER[::2]), ValueError, "values is not contiguous"),
        (lambda: OneBitCodec().encode(np.zeros(9, np.uint8)[1:].view(F32)), ValueError, "multiple of 4 bytes"),
        (lambda: OneBitCodec().encode(VALUES, LARGER), ValueError, "residual has 200 values, but `values` has 100"),
        (lambda: OneBitCodec().encode(VALUES, left=LARGER), ValueError, "left has 200 values"),
        (lambda: OneBitCodec().encode(VALUES, left=READ_ONLY), ValueError, "left is read-only"),
        (lambda: OneBitCodec().encode(LARGER[:100], left=LARGER[1:101]), ValueError, "left overlaps values"),
        (lambda: OneBitCodec().encode(VALUES, wire=BYTES[:5]), ValueError, "wire has 5 bytes, but 100 values need 17"),
        (lambda: OneBitCodec().decode(BYTES[:16], 100), ValueError, "wire has 16 bytes, but 100 values take 17"),
        (lambda: Int8Codec(10).decode(BYTES, 100), ValueError, "wire has 200 bytes, but 100 values take 140"),
        (lambda: Int8Codec().decode(VALUES, 100), TypeError, "wire is an array of float32, but must be one of uint8"),
        (lambda: Int8Codec().decode(BYTES[:104].reshape(2, 52), 100), ValueError, "wire has 2 dimensions"),
        (lambda: OneBitCodec().decode(BYTES[:17], 100, out=LARGER), ValueError, "out has 200 values, but count is 100"),
        (lambda: OneBitCodec().decode(BYTES[:17], 100, out=READ_ONLY), ValueError, "out is read-only"),
        (lambda: OneBitCodec().decode(BYTES[:17], 100, accumulate=True), ValueError, "needs an array `out`"),
        (lambda: OneBitCodec().decode_sum([], 100), ValueError, "wires is empty"),
        (lambda: OneBitCodec().decode_sum([BYTES[:17], BYTES[:9]], 100), ValueError, r"wires\[1\] has 9 bytes"),
        (lambda: TopKCodec(0.1).decode(BYTES[:7], 100), ValueError, "of 7 bytes is cut off"),
    ],
)
def test_errors_name_what_is_wrong(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
