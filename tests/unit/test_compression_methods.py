# SPDX-License-Identifier: Apache-2.0
"""Descriptions of the compression methods: defaults, limits of arguments, and the text that ranks compare."""

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

from horovod.common.compression_methods import CompressionMethod, Dgc, Int8, OneBit, PowerSGD, TopK
from horovod.common.supported_methods import method_in


def test_defaults() -> None:
    assert Int8() == Int8(block=256, error_feedback=True, scope="host", exclude=(), min_bytes=65536)
    assert PowerSGD() == PowerSGD(rank=4, start_after=100, min_rate=1.0, seed=0)
    assert Dgc(0.001, 0.9).ramp == (0.75, 0.9375, 0.9844, 0.996, 0.999)
    assert Dgc(0.001, 0.9).clip is None


def test_numbers_of_other_libraries_become_python_numbers() -> None:
    method = PowerSGD(rank=np.int64(2), start_after=np.int32(0), min_rate=np.float32(1.5), min_bytes=np.int64(8))  # type: ignore[arg-type]
    assert [type(getattr(method, field.name)) for field in dataclasses.fields(method) if field.name != "exclude"] == [
        bool, str, int, int, int, float, int
    ]  # fmt: skip
    assert TopK(1) == TopK(np.float64(1.0))
    assert Int8(exclude=["embedding.*"]).exclude == ("embedding.*",)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [Int8, OneBit, PowerSGD, lambda **more: TopK(0.01, **more)])
@pytest.mark.parametrize(
    ("argument", "values", "allowed"),
    [
        ("error_feedback", [None, 1, "yes"], "True or False"),
        ("scope", ["hosts", None, ""], "'host' or 'all'"),
        ("exclude", ["weight", None, [1], 7], "a list or tuple of names"),
        ("min_bytes", [-1, 1.5, "1", None, True], "a whole number, at least 0"),
    ],
)
def test_limits_of_shared_arguments(make: Any, argument: str, values: list[Any], allowed: str) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"^[a-z0-9]+: {argument} must be {allowed}.*, not ") as caught:
            make(**{argument: value})
        assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("make", "argument", "values", "allowed"),
    [
        (Int8, "block", [0, 8, 100, -16, 65552, 256.0, None, "256"], "a multiple of 16 from 16 to 65536"),
        (TopK, "ratio", [0, -0.1, 1.01, float("nan"), float("inf"), "0.1", None, True], "above 0 and at most 1"),
        (PowerSGD, "rank", [0, -1, 2.0, None, True, "4"], "a whole number, at least 1"),
        (PowerSGD, "start_after", [-1, 0.5, None], "a whole number, at least 0"),
        (PowerSGD, "min_rate", [0, -1, float("inf"), float("nan"), None, "1"], "a finite number above 0"),
        (PowerSGD, "seed", [-1, 2**31, 0.5, None], "a whole number, 0 to 2147483647"),
    ],
)
def test_limits_of_arguments(make: Any, argument: str, values: list[Any], allowed: str) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f": {argument} must be {allowed}, not "):
            make(**{argument: value})


@pytest.mark.parametrize(
    ("argument", "values", "allowed"),
    [
        ("ratio", [0, 2], "above 0 and at most 1"),
        ("momentum", [-0.1, 1, float("nan"), None], "at least 0 and below 1"),
        ("clip", [0, -1, float("inf"), "1"], "None or a finite number above 0"),
        ("ramp", [(0.9, 0.5), (1.0,), (-0.1,), (float("nan"),), 0.5, ("a",)], "ascending numbers"),
        ("ramp_steps", [0, 1.5], "a whole number, at least 1"),
    ],
)
def test_limits_of_arguments_of_dgc(argument: str, values: list[Any], allowed: str) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"^dgc: {argument} must be {allowed}"):
            Dgc(**{"ratio": 0.001, "momentum": 0.9, argument: value})


def test_the_ramp_of_dgc_ends_at_its_ratio() -> None:
    method = Dgc(0.01, 0.9, ramp=(0.75, 0.9375, 0.996), ramp_steps=10)
    assert [method.ratio_at(step) for step in (0, 9, 10, 19, 20, 29, 30, 10**6)] == [
        0.25, 0.25, 0.0625, 0.0625, 0.01, 0.01, 0.01, 0.01
    ]  # fmt: skip
    assert Dgc(0.01, 0.9, ramp=()).ratio_at(0) == 0.01


def test_descriptions_are_equal_if_and_only_if_the_methods_are() -> None:
    methods: list[CompressionMethod] = [
        Int8(), Int8(block=512), Int8(error_feedback=False), Int8(scope="all"), Int8(exclude=("a", "b")),
        Int8(exclude=("a, b",)), Int8(min_bytes=0), OneBit(), TopK(0.01), TopK(0.010000000000000002), PowerSGD(),
        PowerSGD(seed=1), PowerSGD(min_rate=2), Dgc(0.01, 0.9), Dgc(0.01, 0.9, clip=1), Dgc(0.01, 0.9, ramp=()),
    ]  # fmt: skip
    assert len({method.describe() for method in methods}) == len(methods)
    for method in methods:
        same = pickle.loads(pickle.dumps(method))
        assert same == method
        assert same.describe() == method.describe()


def test_a_description_names_every_argument_in_order() -> None:
    assert TopK(1).describe() == (
        "topk(error_feedback=True, exclude=(), min_bytes=65536, ratio=1.0, scope='host')"
    )  # fmt: skip


def test_which_gradients_are_compressed() -> None:
    method = Int8(exclude=("embedding.*", "head.weight"), min_bytes=1024)
    assert method.compresses("body.weight", 1024)
    assert not method.compresses("body.weight", 1023)
    assert not method.compresses("embedding.weight", 4096)
    assert not method.compresses("head.weight", 4096)
    assert method.compresses("Embedding.weight", 4096)


def test_descriptions_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Int8().block = 512  # type: ignore[misc]


def test_an_api_without_the_methods_refuses_them_by_name() -> None:
    assert method_in(None, (), "the trainer") is None
    assert method_in(int, (), "the trainer") is None
    with pytest.raises(ValueError, match=r"^the trainer does not support compression=topk\(.*ratio=0.1"):
        method_in(TopK(0.1), (), "the trainer")
    with pytest.raises(TypeError, match="^compression=Int8 is a class: pass an instance"):
        method_in(Int8, (), "the trainer")
