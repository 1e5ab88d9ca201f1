# SPDX-License-Identifier: Apache-2.0
"""Options, fragments, wire formats and the outer rule of local SGD, without ranks."""

import numpy as np
import pytest

from horovod.common.exceptions import HorovodMismatchError
from horovod.common.local_sgd import AVERAGE, Options, OuterSgd, outer_of
from horovod.common.local_sgd.fragments import BLOCK, divide, layer_of, layers_of, split
from horovod.common.local_sgd.meeting import NO_STATE, Introduction, check_alike, source_of, workers_of
from horovod.common.local_sgd.outer import Outer
from horovod.common.local_sgd.wire import decode, encode, wire_bytes


def test_the_defaults_are_those_of_the_paper():
    assert (OuterSgd().lr, OuterSgd().momentum, OuterSgd().nesterov) == (0.7, 0.9, True)
    options = Options(every=500)
    assert (options.fragments, options.delay, options.merge, options.wire) == (1, 0, 0.0, "fp32")
    assert (AVERAGE.lr, AVERAGE.momentum) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "either every or every_seconds"),
        ({"every": 5, "every_seconds": 1.0}, "either every or every_seconds"),
        ({"every": 0}, "every must be an integer of at least 1, not 0"),
        ({"every": True}, "every must be"),
        ({"every_seconds": 0}, "every_seconds must be a number above 0"),
        ({"every": 4, "fragments": 5}, "fragments=5 is more than every=4"),
        ({"every": 8, "fragments": 2, "delay": 4}, "delay=4 must be below every / fragments = 8 / 2"),
        ({"every": 8, "merge": 1.0}, "merge must be a number at least 0 and below 1"),
        ({"every": 8, "wire": "fp8"}, "wire must be one of fp32, bf16, int8, int4, not 'fp8'"),
        ({"every": 8, "across": "racks"}, "across must be one of ranks, hosts"),
        ({"every": 8, "across": "hosts", "delay": 1}, "across='hosts' needs every=H and delay=0"),
        ({"every": 8, "deadline_s": float("nan")}, "deadline_s must be"),
        ({"every": 8, "outer": 0.7}, "outer must be an OuterSgd"),
        ({"every": 8, "process_set": [0, 1]}, "process_set must be a hvd.ProcessSet"),
    ],
    ids=str,
)
def test_arguments_that_are_refused_by_name(arguments, text):
    with pytest.raises(ValueError, match=text.replace("(", r"\(")):
        Options(**arguments)


def test_outer_rules_in_words_of_users():
    assert outer_of(None) == OuterSgd()
    assert outer_of({"lr": 1}) == OuterSgd(1.0, 0.0, False)
    assert outer_of({"lr": 0.5, "momentum": 0.8, "nesterov": True}) == OuterSgd(0.5, 0.8, True)
    for wrong in ({"lr": 1, "beta": 2}, {"lr": 1, "weight_decay": 0.1}, "sgd", {"lr": 1, "betas": (0.9, 0.95)}):
        with pytest.raises(ValueError, match="outer"):
            outer_of(wrong)


def test_layers_and_fragments():
    assert layer_of("transformer.h.3.attn.weight") == "transformer.h.3"
    assert layer_of("['params']['Dense_0']['kernel']") == "params.Dense_0"
    assert layer_of("embed.weight") == "embed"
    assert layer_of("dense/kernel") == "dense"
    assert layer_of("scale") == "scale"
    parameters = [(f"{layer}.{kind}", (layer + 1, 2)) for layer in range(5) for kind in ("weight", "bias")]
    first, second = divide(parameters, 2)
    assert layers_of(second.names) == ["1", "3"]
    assert first.starts == (0, 2, 4, 10, 16, 26, 36)
    assert first.size == 36
    with pytest.raises(ValueError, match=r"fragments=6 is more than the 5 layers of the model \(0, 1, 2, 3, 4\)"):
        Options(every=9, fragments=6).check_layers(layers_of([name for name, _ in parameters]))


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 1000, 5000])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_ranges_cover_everything_once_and_begin_at_blocks(size, count):
    ranges = split(0, size, count)
    assert [it for begin, end in ranges for it in range(begin, end)] == list(range(size))
    assert all(begin % BLOCK == 0 or begin == size for begin, _ in ranges)


WIRES = ("fp32", "bf16", "int8", "int4")


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("size", [0, 1, 2, 255, 257, 1001])
def test_wire_formats(wire, size):
    values = (np.random.default_rng(size).normal(size=size) * 10.0 ** (size % 7 - 3)).astype(np.float32)
    data = encode(values, wire)
    assert data.dtype == np.uint8
    assert data.nbytes == wire_bytes(size, wire)
    back = decode(data, size, wire)
    assert back.dtype == np.float32
    np.testing.assert_array_equal(decode(encode(back, wire), size, wire) if wire != "int8" else back, back)
    blocks = np.repeat([np.abs(values[at : at + BLOCK]).max(initial=0) for at in range(0, size, BLOCK)], BLOCK)[:size]
    limits = {
        "fp32": np.zeros(size),
        "bf16": np.abs(values) * 2.0**-8,
        "int8": blocks / 127 * 0.501,
        "int4": np.maximum(np.abs(values) / 3 * 1.001, blocks * 2.0**-7 * 1.001),
    }
    assert (np.abs(back - values) <= limits[wire]).all()


def test_int4_is_sign_and_exponent():
    values = np.array([0, 1, -1, 0.5, 0.76, 0.74, -0.25, 2**-6, 2**-7, 2**-8, -(2**-6)], np.float32)
    expected = [0, 1, -1, 0.5, 1, 0.5, -0.25, 2**-6, 2**-6, 0, -(2**-6)]
    assert decode(encode(values, "int4"), values.size, "int4").tolist() == expected


def test_bf16_rounds_to_even_and_never_to_infinity():
    largest = np.finfo(np.float32).max
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8, -largest, largest], np.float32)
    back = decode(encode(values, "bf16"), 4, "bf16")
    assert back[:2].tolist() == [1.0, 1 + 2**-6]
    assert np.isfinite(back).all()


def test_the_outer_step_and_its_state():
    parameters = [("a.w", (2, 2)), ("b.w", (3,))]
    outer = Outer(divide(parameters, 2), OuterSgd())
    outer.set_weights(0, [np.ones((2, 2))])
    average = np.full(4, 0.5, np.float32)
    outer.apply(0, average)
    outer.apply(0, average[:2], begin=2)
    w1, b1 = 1 - 0.7 * (0.9 * 0.5 + 0.5), 0.5
    b2 = 0.9 * b1 + 0.5
    expected = [w1, w1, w1 - 0.7 * (0.9 * b2 + 0.5), w1 - 0.7 * (0.9 * b2 + 0.5)]
    np.testing.assert_allclose(outer.weights[0], expected, rtol=1e-6)
    other = Outer(divide(parameters, 1), OuterSgd())
    other.load(*outer.all_by_name())
    np.testing.assert_array_equal(other.weights[0][:4], outer.weights[0])
    np.testing.assert_array_equal(other.momentum[0][:4], outer.momentum[0])
    with pytest.raises(ValueError, match=r"state_dict: its global weights do not fit the model, for example 'b\.w'"):
        other.load({"a.w": np.ones((2, 2))}, {})


def introduction(rank, host="a", next_round=NO_STATE, digest="", **changes):
    options, parameters = Options(**{"every": 10, **changes}).described(), [("w", (3,))]
    return Introduction(rank, rank, host, 0, options, parameters, next_round, digest, 0, 0)


def test_differences_between_ranks_are_named():
    check_alike([introduction(0), introduction(1)])
    with pytest.raises(HorovodMismatchError, match="every is 10 on rank 0 and 20 on rank 1"):
        check_alike([introduction(0), introduction(1, every=20)])
    with pytest.raises(HorovodMismatchError, match="outer: lr is 0.7 on rank 0 and 1.0 on rank 1"):
        check_alike([introduction(0), introduction(1, outer=AVERAGE)])


def test_workers_and_the_source_of_the_state():
    four = [introduction(rank, "ab"[rank // 2]) for rank in range(4)]
    assert workers_of(four, "hosts") == ((0, 1), (2, 3))
    assert workers_of(four, "ranks") == ((0,), (1,), (2,), (3,))
    with pytest.raises(ValueError, match="there are 2 on a, 1 on b"):
        workers_of(four[:3], "hosts")
    assert source_of(four) is None
    assert source_of([introduction(0), introduction(1, next_round=4), introduction(2, next_round=3)]) == 1
    assert source_of([introduction(0, next_round=4, digest="x"), introduction(1, next_round=4, digest="x")]) is None
    assert source_of([introduction(0, next_round=4, digest="x"), introduction(1, next_round=4, digest="y")]) == 0
