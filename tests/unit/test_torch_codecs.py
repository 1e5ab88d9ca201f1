# SPDX-License-Identifier: Apache-2.0
"""Codecs made of torch operations compared with NumPy reference implementations, and the algebra of PowerSGD."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from harness import compression_reference as reference  # noqa: E402

from horovod.common.compression_methods import Int8, OneBit, PowerSGD, TopK  # noqa: E402
from horovod.torch.codecs import Int8Codec, OneBitCodec, TopKCodec, codec_for  # noqa: E402
from horovod.torch.codecs.low_rank import Factors, fold, is_worth_factoring, orthonormalise  # noqa: E402

CPU = torch.device("cpu")


def by_operations(method: Any) -> Any:
    """Return the codec made of torch operations, which GPUs use."""
    if isinstance(method, Int8):
        return Int8Codec(method.block)
    return TopKCodec(method.ratio) if isinstance(method, TopK) else OneBitCodec()


def by_engine(method: Any) -> Any:
    return codec_for(method, CPU)


by_both = pytest.mark.parametrize("codec_of", [by_operations, by_engine])
COUNTS = (1, 8, 257, 4097, 150_001)


def values(kind: str, count: int, seed: int = 0) -> Any:
    generator = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        made = {
            "normal": lambda: generator.standard_normal(count),
            "wide": lambda: generator.standard_normal(count) * 10.0 ** generator.integers(-38, 30, count),
            "zero": lambda: np.zeros(count),
            "minus_zero": lambda: np.where(np.arange(count) % 2, -0.0, 1e-3),
            "equal": lambda: np.full(count, -0.25),
            "denormal": lambda: generator.standard_normal(count) * 1e-40,
            "halves": lambda: generator.integers(-254, 255, count) / 2,  # quotients halfway between two steps
            "sparse": lambda: np.where(np.arange(count) % 97 == 3, generator.standard_normal(count), 0.0),
            "largest": lambda: generator.choice([-1, 1], count) * np.finfo(np.float32).max,
        }[kind]()
        return made.astype(np.float32)


KINDS = ("normal", "wide", "zero", "minus_zero", "equal", "denormal", "halves", "sparse", "largest")


def encoded(codec: Any, p: Any) -> tuple[bytes, Any]:
    """Return the message and the residual; check that encoding in place gives identical results."""
    given, apart = torch.from_numpy(p.copy()), torch.empty(len(p))
    wire, in_place = codec.encode(given, apart), torch.from_numpy(p.copy())
    assert torch.equal(given, torch.from_numpy(p)) or np.isnan(p).any()
    assert torch.equal(codec.encode(in_place, in_place), wire)
    assert torch.equal(codec.encode(given, None), wire)
    assert torch.equal(in_place.view(torch.int32), apart.view(torch.int32))
    return wire.numpy().tobytes(), apart.numpy()


def decoded(codec: Any, wire: bytes, count: int, factor: float = 1.0) -> Any:
    out = torch.full((count,), 7.0)
    codec.decode(torch.frombuffer(bytearray(wire), dtype=torch.uint8), count, factor, out)
    return out.numpy()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [16, 256])
@by_both
def test_int8_is_bit_equal_with_numpy(codec_of: Any, kind: str, block: int) -> None:
    codec = codec_of(Int8(block=block))
    for count in COUNTS:
        p = values(kind, count)
        wire, left = encoded(codec, p)
        assert wire == reference.int8_encode(p, block)
        expected = reference.int8_decode(wire, count, block)
        np.testing.assert_array_equal(decoded(codec, wire, count), expected)
        np.testing.assert_array_equal(left, p - expected)
        np.testing.assert_array_equal(decoded(codec, wire, count, 0.3), expected * np.float32(0.3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.3, 1.0])
@by_both
def test_topk_is_bit_equal_with_numpy(codec_of: Any, kind: str, ratio: float) -> None:
    codec = codec_of(TopK(ratio))
    for count in COUNTS:
        p = values(kind, count)
        wire, left = encoded(codec, p)
        assert wire == reference.topk_encode(p, ratio)
        assert 8 <= len(wire) <= 8 * -(-5 * max(1, round(ratio * count)) // 4)
        expected = reference.topk_decode(wire, count)
        np.testing.assert_array_equal(decoded(codec, wire, count), expected)
        np.testing.assert_array_equal(left + expected, p)
        padded = codec.encode_padded(torch.from_numpy(p), None)
        assert padded.numel() == codec.wire_bytes(count)
        np.testing.assert_array_equal(decoded(codec, padded.numpy().tobytes(), count), expected)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "largest"])
@by_both
def test_onebit_equals_numpy_up_to_the_rounding_of_means(codec_of: Any, kind: str) -> None:
    codec = codec_of(OneBit())
    for count in COUNTS:
        p = values(kind, count)
        wire, left = encoded(codec, p)
        expected, means = reference.onebit_encode(p), 4 * -(-count // 4096)
        assert wire[means:] == expected[means:]
        ours, theirs = (np.frombuffer(it[:means], np.float32) for it in (wire, expected))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-44)
        same = reference.onebit_decode(wire, count)
        np.testing.assert_array_equal(decoded(codec, wire, count), same)
        np.testing.assert_array_equal(left, p - same)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("count", [5, 4096, 9000])
@by_both
def test_bad_values_are_marked(codec_of: Any, bad: float, count: int) -> None:
    p = values("normal", count)
    p[count // 2] = bad
    int8, _ = encoded(codec_of(Int8()), p)
    assert int8 == reference.int8_encode(p, 256)
    block = count // 2 // 256 * 256
    assert np.isnan(decoded(codec_of(Int8()), int8, count)[block : block + 256]).all()
    onebit, _ = encoded(codec_of(OneBit()), p)
    block = count // 2 // 4096 * 4096
    assert np.isnan(decoded(codec_of(OneBit()), onebit, count)[block : block + 4096]).all()
    topk, left = encoded(codec_of(TopK(0.1)), p)
    assert topk == np.int32(0).tobytes() + np.float32(np.nan).tobytes()
    assert np.isnan(decoded(codec_of(TopK(0.1)), topk, count)[0])
    np.testing.assert_array_equal(left, p)  # the residual is the whole input


@pytest.mark.parametrize(
    ("method", "decode"),
    [
        (Int8(block=16), lambda wire, count: reference.int8_decode(wire, count, 16)),
        (OneBit(), reference.onebit_decode),
        (TopK(0.1), reference.topk_decode),
    ],
    ids=["int8", "onebit", "topk"],
)
@pytest.mark.parametrize("count", [1, 333, 5000])
@by_both
def test_sums_of_messages(codec_of: Any, method: Any, decode: Callable[[bytes, int], Any], count: int) -> None:
    codec = codec_of(method)
    encode = codec.encode_padded if isinstance(method, TopK) else codec.encode
    wires = torch.stack([encode(torch.from_numpy(values("normal", count, seed)), None) for seed in range(3)])
    first, second, third = (decode(wire.numpy().tobytes(), count) for wire in wires)
    out = torch.empty(count)
    codec.decode_sum(wires, count, 0.25, out)
    np.testing.assert_array_equal(out.numpy(), (first + second + third) * np.float32(0.25))
    inside = torch.cat([torch.zeros(3, 1, dtype=torch.uint8), wires], dim=1)[:, 1:]  # at odd addresses
    codec.decode_sum(inside, count, 0.25, again := torch.empty(count))
    assert torch.equal(again, out)


def test_rows_of_int8_are_messages() -> None:
    codec: Any = Int8Codec(16)
    rows = torch.from_numpy(values("normal", 3 * 48)).view(3, 48)
    wires = codec.encode_rows(rows, left := torch.empty(3, 48))
    for row, wire, rest in zip(rows, wires, left, strict=True):
        assert torch.equal(wire, codec.encode(row, expected := torch.empty(48)))
        assert torch.equal(rest, expected)
    codec.decode_rows(wires, out := torch.empty(3, 48))
    assert torch.equal(out, rows - left) or torch.allclose(out, rows - left, rtol=0, atol=1e-6)


def test_topk_sends_about_as_many_values_as_wanted() -> None:
    codec = TopKCodec(0.01)
    sent = [codec.encode(torch.from_numpy(values("normal", 200_000, seed)), None).numel() // 8 for seed in range(5)]
    assert all(1000 <= number <= 2500 for number in sent)


def test_methods_without_a_codec_are_refused() -> None:
    with pytest.raises(ValueError, match="no codec for the method powersgd"):
        codec_for(PowerSGD(), CPU)


def test_which_tensors_are_matrices() -> None:
    assert fold((64, 3, 3, 3)) == (64, 27)
    assert fold((5, 7)) == (5, 7)
    assert [fold(shape) for shape in ((), (9,), (0, 4), (4, 0))] == [None] * 4
    assert is_worth_factoring(8, 8, PowerSGD(rank=4))  # the matrix and both factors have 64 values
    assert not is_worth_factoring(8, 7, PowerSGD(rank=4))
    assert not is_worth_factoring(8, 8, PowerSGD(rank=4, min_rate=1.1))


def test_bases_are_orthonormal_also_of_dependent_and_empty_columns() -> None:
    generator = torch.Generator().manual_seed(1)
    matrices = torch.randn(4, 300, 4, generator=generator)
    matrices[1] = matrices[1, :, :1] * torch.tensor([1.0, 1e-3, -5.0, 100.0])  # a matrix of rank 1
    matrices[2] *= 1e-30  # the squares underflow
    matrices[3] = 0
    given = matrices.clone()
    orthonormalise(matrices)
    for number in range(4):
        torch.testing.assert_close(matrices[number].T @ matrices[number], torch.eye(4), rtol=0, atol=1e-5)
        scaled = given[number] / given[number].abs().max().clamp(min=1e-35)
        torch.testing.assert_close(matrices[number] @ (matrices[number].T @ scaled), scaled, rtol=0, atol=1e-5)
    orthonormalise(again := given.clone())
    assert torch.equal(again, matrices)


def test_enough_columns_restore_every_matrix() -> None:
    shapes = [(6, 9), (10,), (5, 2, 2), (), (6, 9), (7, 1)]
    factors = Factors(shapes, PowerSGD(rank=12, min_rate=1e-9))
    assert [(it.offset, it.rows, it.columns, it.rank) for it in factors.matrices] == [
        (64, 5, 4, 4), (0, 6, 9, 6), (85, 6, 9, 6), (139, 7, 1, 1)
    ]  # fmt: skip
    assert factors.dense == [(54, 10), (84, 1)]
    assert (factors.count, factors.dense_count) == (146, 11)
    flat = torch.from_numpy(values("normal", factors.count))
    q, p = factors.first_q(3, CPU), torch.empty(factors.p_count)
    assert torch.equal(q, factors.first_q(3, CPU))
    assert not torch.equal(q, factors.first_q(4, CPU))
    factors.multiply(flat, q, p)
    factors.orthonormalise(p)
    factors.multiply_transposed(flat, p, q)
    result = flat.clone()
    for matrix in factors.matrices:
        matrix.of(result).zero_()
    factors.restore(p, q, result)
    torch.testing.assert_close(result, flat, rtol=1e-5, atol=1e-5)
