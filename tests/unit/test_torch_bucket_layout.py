# SPDX-License-Identifier: Apache-2.0
"""Buckets of communication hooks, by table: grouping of parameters, and differences between ranks."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import pytest

pytest.importorskip("torch")

from horovod.torch.hooks.attached import describe
from horovod.torch.hooks.comparison import Side, difference, layout_to_take_over, share
from horovod.torch.hooks.layout import (
    DEFAULT_BYTES,
    Described,
    Layout,
    append_buckets,
    make_layout,
    packed,
    placed,
    unpacked,
)


def parameter(name: str, elements: int = 10, dtype: str = "float32", device: str = "cpu", place: str = "") -> Described:
    return Described(name, elements, 2 if dtype == "float16" else 4, dtype, device, place)


def names(layout: Layout) -> list[str]:
    return ["".join(plan.names) for plan in layout]


FOUR = [parameter(letter) for letter in "abcd"]  # four parameters of 40 bytes each


@pytest.mark.parametrize(
    ("parameters", "groups", "limit", "expected"),
    [
        (FOUR, [], DEFAULT_BYTES, ["dcba"]),
        (FOUR, [], 80, ["dc", "ba"]),
        (FOUR, [], 119, ["dc", "ba"]),
        (FOUR, [], 120, ["dcb", "a"]),
        (FOUR, [], 1, ["d", "c", "b", "a"]),
        (FOUR, [["a", "c"]], DEFAULT_BYTES, ["ac", "db"]),
        (FOUR, [["a", "b", "c"]], 40, ["abc", "d"]),
        (FOUR, [["b", "frozen"], ["frozen"]], DEFAULT_BYTES, ["b", "dca"]),
        ([], [], DEFAULT_BYTES, []),
        ([parameter("a"), parameter("b", dtype="float16"), parameter("c")], [], DEFAULT_BYTES, ["ca", "b"]),
        ([parameter("a"), parameter("b", device="cuda"), parameter("c")], [], DEFAULT_BYTES, ["ca", "b"]),
        ([parameter("a", place="cuda:0"), parameter("b", place="cuda:1")], [], DEFAULT_BYTES, ["b", "a"]),
        ([parameter("a"), parameter("b", dtype="float16")], [["a", "b"]], DEFAULT_BYTES, ["a", "b"]),
        ([parameter("a"), parameter("b", 1000), parameter("c")], [], 100, ["c", "b", "a"]),
        ([parameter("a"), parameter("b", dtype="float16"), parameter("c")], [], 40, ["c", "b", "a"]),
    ],
)
def test_which_parameters_go_together(
    parameters: list[Described], groups: list[list[str]], limit: int, expected: list[str]
) -> None:
    layout = make_layout(parameters, groups, limit)
    assert names(layout) == expected
    assert unpacked(packed(layout)) == layout
    for plan in layout:
        assert plan.elements == sum(it.elements for it in parameters if it.name in plan.names)


def test_a_layout_grows_and_never_changes() -> None:
    layout = make_layout(FOUR[:2], limit_bytes=80)
    grown = append_buckets(layout, FOUR, 40)
    assert grown[:1] == layout
    assert names(grown) == ["ba", "d", "c"]
    assert append_buckets(grown, FOUR) == grown
    assert placed(grown) == set("abcd")


def test_the_checksum_shows_hook_and_layout() -> None:
    layout, other = make_layout(FOUR), make_layout(FOUR, limit_bytes=40)
    assert Side(None).checksum() == Side(None, layout).checksum() == 0
    checksums = {Side(hook, it).checksum() for hook in ("one", "two") for it in (layout, other, ())}
    assert len(checksums) == 6
    assert 0 not in checksums
    assert Side("one", layout).checksum() == Side("one", layout, is_settled=True).checksum()
    assert Side.unpacked(Side("one", layout, True).packed()) == Side("one", layout, True)


ONE, SPLIT = make_layout(FOUR), make_layout(FOUR, limit_bytes=80)


@pytest.mark.parametrize(
    ("sides", "taken", "text"),
    [
        (
            [Side("h", ONE), Side("h", SPLIT)],
            ONE,
            "bucket 0 holds 40 elements of float32 on cpu, of 'd', 'c', 'b' and 1",
        ),
        ([None, Side("h", SPLIT), Side("h", ONE)], SPLIT, "'d', 'c' on rank 6 and 40 elements"),
        (
            [Side("h", ONE, True), Side("h", (*ONE, *SPLIT))],
            None,
            "bucket 1 holds nothing on rank 4 and 20 elements of",
        ),
        ([Side("h", ONE), Side(None), Side("h", ONE)], None, "hooks: 'h' on rank 4, none on rank 6."),
        ([Side("h", ONE), Side("h", ONE), Side("k(2)", ONE)], None, "hooks: 'h' on rank 4, 'k(2)' on rank 9."),
    ],
)
def test_what_ranks_do_about_a_difference(sides: list[Side | None], taken: Layout | None, text: str) -> None:
    assert layout_to_take_over(sides) == taken
    assert text in difference([4, 6, 9][: len(sides)], sides)


def test_texts_are_shared_and_a_rank_that_has_joined_has_none() -> None:
    texts = [b"of rank 0", b"", b"another"]
    asked = [share(text, index, 3) for index, text in enumerate(texts)]
    messages = [next(it) for number, it in enumerate(asked) if number != 1]
    results: list[list[bytes]] = []
    while messages:
        answer = bytes(map(max, zip(*messages, strict=True)))
        messages = []
        for number in (0, 2):
            try:
                messages.append(asked[number].send(answer))
            except StopIteration as end:
                results.append(end.value)
    assert results == [texts, texts]


def a_hook(bucket: object, factor: int = 1) -> object:
    return bucket, factor


@dataclass
class WithArguments:
    rate: float

    def __call__(self, bucket: object) -> object:
        return bucket

    def method(self, bucket: object) -> object:
        return bucket


class Plain:
    def __call__(self, bucket: object) -> object:
        return bucket


class Named(Plain):
    def describe(self) -> str:
        return "mine, version 2"


@pytest.mark.parametrize(
    ("hook", "text"),
    [
        (a_hook, "a_hook"),
        (functools.partial(a_hook, factor=3), "a_hook(factor=3)"),
        (functools.partial(a_hook, Plain()), "a_hook(<Plain object>)"),
        (WithArguments(0.5), "WithArguments(rate=0.5)"),
        (WithArguments(0.5).method, "WithArguments(rate=0.5).method"),
        (Plain(), "Plain"),
        (Named(), "mine, version 2"),
    ],
)
def test_how_ranks_describe_a_hook(hook: object, text: str) -> None:
    assert describe(hook).replace(f"{__name__}.", "") == text
