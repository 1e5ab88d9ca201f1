# SPDX-License-Identifier: Apache-2.0
"""Decisions of ranks about a round of gradients, by table: messages and results, without processes or tensors."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from horovod.torch.gradients.rounds import (
    DONE,
    DUE,
    DUE_SPARSE,
    FROZEN,
    HEAD_BYTES,
    OPEN,
    OPEN_SPARSE,
    Differ,
    Look,
    Names,
    Place,
    Reduce,
    Round,
    Seen,
    is_due,
)

BACKWARD, STEP = Place.BACKWARD, Place.STEP
LETTERS = {".": FROZEN, "o": OPEN, "s": OPEN_SPARSE, "D": DUE, "S": DUE_SPARSE, "x": DONE}


def standings(letters: str) -> bytes:
    return bytes(LETTERS[letter] for letter in letters)


def combine(messages: list[bytes]) -> bytes:
    return bytes(map(max, zip(*messages, strict=True)))


def meet(*words: tuple[Round, Place, str]) -> tuple[Round, Reduce | Differ]:
    """Combine messages of ranks, given as (memory, place, gradients); return the decision common to all ranks."""
    messages = [memory.message(rank, place, standings(it)) for rank, (memory, place, it) in enumerate(words)]
    answers = {memory.heard(combine(messages)) for memory, _, _ in words}
    assert len(answers) == 1, "ranks decide differently"
    return answers.pop()


def is_bundled(*keys: int) -> bool:
    messages = [Round().message(rank, BACKWARD, standings("DD"), key) for rank, key in enumerate(keys)]
    decision = Round().heard(combine(messages))[1]
    assert isinstance(decision, Reduce)
    return decision.bundled


def test_what_all_ranks_would_bundle_is_bundled() -> None:
    assert is_bundled(5, 5, 5)
    assert is_bundled(2**64 - 1, 2**64 - 1)
    assert not is_bundled(5, 6)
    assert not is_bundled(5, 0)
    assert not is_bundled(0, 0)
    # The maximum of 0x0100 and 0x0001, byte by byte, equals neither of them.
    assert not is_bundled(0x0100, 0x0001)


def seen(*looks: Look) -> Seen:
    messages = [Round().message(rank, BACKWARD, standings("DD"), 0, it.packed()) for rank, it in enumerate(looks)]
    decision = Round().heard(combine(messages))[1]
    assert isinstance(decision, Reduce)
    return decision.seen


def parameters_differ(*checksums: int | None) -> bool:
    return seen(*(Look(it) for it in checksums)).parameters_differ


def test_parameters_are_compared_among_those_who_have_looked() -> None:
    assert parameters_differ(5, 6)
    assert parameters_differ(0x0100, 0x0001, None)
    assert parameters_differ(0, 2**32 - 1)
    assert not parameters_differ(5, 5, 5)
    assert not parameters_differ(0, 0)
    assert not parameters_differ(None, None)
    assert not parameters_differ(5, None, 5)  # None: a rank in a later round, or one that has joined


LOOKS = {
    "nothing to say": ([Look(), Look()], Seen()),
    "what one rank says of names": ([Look(), Look(names=Names.SHARED)], Seen(names=Names.SHARED)),
    "the most that a rank says of names": (
        [Look(names=Names.SHARED), Look(names=Names.TWINS), Look()],
        Seen(names=Names.TWINS),
    ),
    "the same, after a join": ([Look(5, True), Look(5, True)], Seen(after_join=True)),
    "different, after a join that one rank does not know of": (
        [Look(5, True), Look(6)],
        Seen(parameters_differ=True, after_join=True),
    ),
    "different twins": (
        [Look(5, names=Names.TWINS), Look(6)],
        Seen(parameters_differ=True, names=Names.TWINS),
    ),
}


@pytest.mark.parametrize("case", LOOKS)
def test_what_ranks_see_of_parameters_and_names(case: str) -> None:
    looks, expected = LOOKS[case]
    assert seen(*looks) == expected
    assert seen(*reversed(looks)) == expected
    joined = Round().message(0, BACKWARD, standings("DD"), 0, looks[0].packed())
    assert Round().heard(combine([joined, bytes(len(joined))])) == Round().heard(joined)


new = Round()
once = new.stepped()

# By name: messages of the ranks; what they reduce, in lower case if it is sparse; True if that completes the round.
DECISIONS = {
    "the same graph": ([(new, BACKWARD, "DDD"), (new, BACKWARD, "DDD")], "RRR", True),
    "one rank skips backward()": ([(new, BACKWARD, "DDD"), (new, STEP, "ooo")], "RRR", True),
    "two of three skip backward()": ([(new, STEP, "ooo"), (new, BACKWARD, "DDD"), (new, STEP, "ooo")], "RRR", True),
    "all skip backward()": ([(new, STEP, "ooo"), (new, STEP, "ooo")], "RRR", True),
    "other parameters": ([(new, BACKWARD, "Doo"), (new, BACKWARD, "oDo")], "RR-", False),
    "an unused one, later in step()": ([(new, STEP, "xxo"), (new, STEP, "xxo")], "--R", True),
    "one in step(), one with more to come": ([(new, STEP, "xoo"), (new, BACKWARD, "xDo")], "-R-", False),
    "a window that is not full": ([(new, BACKWARD, "DD"), (new, STEP, "oo")], "RR", True),
    "frozen on all ranks": ([(new, BACKWARD, "D."), (new, BACKWARD, "D.")], "R-", True),
    "frozen on one rank, due on the other": ([(new, BACKWARD, "D."), (new, BACKWARD, "DD")], "RR", True),
    "frozen on one rank, unused on the other": ([(new, STEP, "x."), (new, STEP, "xo")], "-R", True),
    "sparse, and zeros of a rank that knows": ([(new, BACKWARD, "DS"), (new, STEP, "os")], "Rr", True),
    "sparse, and zeros of a rank that does not know": ([(new, BACKWARD, "DS"), (new, STEP, "oo")], "Rr", True),
    "sparse, and unused on all ranks": ([(new, STEP, "xs"), (new, STEP, "xo")], "-r", True),
    "sparse on one rank, dense on the other": ([(new, BACKWARD, "S"), (new, BACKWARD, "D")], "r", True),
    "a sparse one that was left out, dense elsewhere": ([(new, BACKWARD, "s"), (new, BACKWARD, "D")], "R", True),
    "after a step of all": ([(once, BACKWARD, "DD"), (once, STEP, "oo")], "RR", True),
    "after a reduced gradient was dropped by all": (
        [(Round(done=2), BACKWARD, "Do"), (Round(done=2), STEP, "oo")],
        "R-",
        False,
    ),
}


@pytest.mark.parametrize("case", DECISIONS)
def test_decisions(case: str) -> None:
    words, reduced, complete = DECISIONS[case]
    after, decision = meet(*words)
    assert isinstance(decision, Reduce)
    assert [bool(it) for it in decision.wanted] == [letter in "Rr" for letter in reduced]
    assert decision.sparse == tuple(number for number, letter in enumerate(reduced) if letter == "r")
    assert after.complete is complete
    assert after.steps == 0
    assert after.done == sum(letter in "Rr" for letter in reduced) + words[0][2].count("x")


DIFFERENCES = {
    "a step that one rank left out": (
        [(once, BACKWARD, "DD"), (new, BACKWARD, "DD")],
        "rank 0 has called optimizer.step() while rank 1 has not",
    ),
    "a step that one rank left out, then steps": (
        [(once, BACKWARD, "DD"), (once, BACKWARD, "DD"), (new, STEP, "oo")],
        "rank 1 has called optimizer.step() while rank 2 has not",
    ),
    "a step more": (
        [(once, STEP, "o"), (once.stepped(), STEP, "o")],
        "rank 1 has called optimizer.step() more than once, while rank 0 has once",
    ),
    "gradients that one rank dropped": (
        [(Round(done=1), STEP, "xo"), (Round(done=1), BACKWARD, "Do")],
        "rank 1 has dropped reduced gradients before optimizer.step(), rank 0 has kept them",
    ),
    "different gradients dropped": (
        [(Round(done=2), BACKWARD, "xD"), (Round(done=2), BACKWARD, "Dx")],
        "they have dropped different gradients",
    ),
    "ranks that have no byte of their own": (
        [(new, STEP, "o")] * 300 + [(once, STEP, "o")],
        "a rank from 254 on has called optimizer.step() while a rank from 254 on has not",
    ),
}


@pytest.mark.parametrize("case", DIFFERENCES)
def test_differences_are_found_by_all_ranks_and_named(case: str) -> None:
    words, text = DIFFERENCES[case]
    after, decision = meet(*words)
    assert isinstance(decision, Differ)
    assert text in decision.text
    assert after == Round()  # all ranks start again if the program catches the error


@pytest.mark.parametrize("case", DECISIONS)
def test_a_rank_that_has_joined_changes_nothing_but_what_is_nobodys(case: str) -> None:
    words, _, _ = DECISIONS[case]
    for memory, place, letters in words:
        message = memory.message(7, place, standings(letters))
        assert memory.heard(combine([message, bytes(len(message))])) == memory.heard(message)


def test_what_happens_on_one_rank_alone() -> None:
    assert Round(complete=True, done=3).forgotten() == Round(done=3)
    assert Round(complete=True).stepped() == Round(steps=1, complete=True)
    assert is_due(standings("oDo"))
    assert is_due(standings("oSo"))
    assert not is_due(standings("o.xs"))


letters = st.sampled_from("o.sDS")
memories = st.builds(Round, steps=st.integers(0, 1))
words = st.tuples(memories, st.sampled_from(Place), st.lists(letters, min_size=3, max_size=3).map("".join))


@settings(derandomize=True, deadline=None)
@given(st.lists(words, min_size=2, max_size=4))
def test_ranks_decide_alike_and_leave_nothing_undone(said: list[tuple[Round, Place, str]]) -> None:
    after, decision = meet(*said)
    steps = {memory.steps for memory, _, _ in said}
    assert isinstance(decision, Differ) == (len(steps) > 1)
    if isinstance(decision, Reduce):
        nobody_computes = all(place is STEP for _, place, _ in said)
        for number, wanted in enumerate(decision.wanted):
            column = {letters[number] for _, _, letters in said}
            assert wanted or not column & set("DS")
            assert wanted or not nobody_computes or column == {"."}
            assert after.complete or not nobody_computes
        assert len(decision.wanted) + HEAD_BYTES == len(said[0][0].message(0, STEP, standings(said[0][2])))


def hooks_differ(*checksums: int) -> bool:
    messages = [Round().message(rank, BACKWARD, standings("DD"), hooks=it) for rank, it in enumerate(checksums)]
    decision = Round().heard(combine(messages))[1]
    assert isinstance(decision, Reduce)
    joined = Round().heard(combine([*messages, bytes(len(messages[0]))]))[1]
    assert joined == decision  # a rank that has joined sends zeros, which match every hook
    return decision.hooks_differ


def test_communication_hooks_are_compared_in_every_message() -> None:
    assert not hooks_differ(0, 0)
    assert not hooks_differ(5, 5, 5)
    assert not hooks_differ(2**32 - 1, 2**32 - 1)
    assert hooks_differ(0, 5)
    assert hooks_differ(5, 6)
    assert hooks_differ(0x0100, 0x0001)
    assert hooks_differ(0, 2**32 - 1)


def test_all_ranks_hear_what_any_of_them_trains() -> None:
    words = ((BACKWARD, "D.o.x"), (STEP, "o.sox"))
    messages = [Round().message(rank, place, standings(it), hooks=5) for rank, (place, it) in enumerate(words)]
    _, decision = Round().heard(combine(messages))
    assert isinstance(decision, Reduce)
    assert list(decision.trained) == [1, 0, 1, 1, 1]
