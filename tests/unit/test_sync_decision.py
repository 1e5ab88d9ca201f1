# SPDX-License-Identifier: Apache-2.0
"""Which rank broadcasts the state of an elastic training: all cases that ranks can report, by table."""

import re

import msgpack
import pytest

from horovod.common.lineage import NO_CALL, CommitId, SeenFile, merged, newest_of, start_lineage
from horovod.common.sync_decision import LoadAttempt, SyncReport, decide_sync

MINE, OTHER = "aa" * 8, "bb" * 8
FOLDER = "/checkpoints"


def commit(count, lineage=MINE):
    return CommitId(lineage, count)


def seen(number, commits=None, lineage=MINE, call=0):
    return SeenFile(call, number, lineage, number if commits is None else commits, f"{FOLDER}/{lineage[:2]}-{number}")


def loaded(number):
    return LoadAttempt(commit(number), FOLDER, f"{FOLDER}/aa-{number}", seen(number))


NOTHING_THERE = LoadAttempt(commit(0), FOLDER)
NO_CHECKPOINT = LoadAttempt(commit(0))
HAS_STATE = SyncReport(False, commit=commit(7))


def new(attempt=None, newest=None, known=None, call=0):
    lineages = frozenset([newest.lineage]) if newest is not None else frozenset()
    return SyncReport(True, call, None, attempt, newest, known, lineages)


GOOD = {
    "all have the state": ([HAS_STATE, HAS_STATE], (False, commit(7))),
    "a newcomer": ([HAS_STATE, new()], (True, commit(7))),
    "a newcomer that sees files of this training": ([HAS_STATE, new(newest=seen(5))], (True, commit(7))),
    "a newcomer with old files of another training": (
        [HAS_STATE, new(newest=seen(50, commits=6, lineage=OTHER))],
        (True, commit(7)),
    ),
    "a newcomer in another training of the program": (
        [HAS_STATE, new(newest=seen(9, lineage=OTHER, call=1), call=1)],
        (True, commit(7)),
    ),
    "a newcomer without a folder, which the driver has told": ([HAS_STATE, new(known=seen(5))], (True, commit(7))),
    "rank 0 is ahead by a commit": ([HAS_STATE, SyncReport(True, commit=commit(6))], (True, commit(7))),
    "rank 0 has loaded": ([new(loaded(5), seen(5)), new(newest=seen(5))], (True, commit(5))),
    "rank 0 alone sees the folder": ([new(loaded(5), seen(5)), new()], (True, commit(5))),
    "an older worker saw an older file": ([new(loaded(5)), new(known=seen(4))], (True, commit(5))),
    "the newest file is damaged": (
        [new(LoadAttempt(commit(5), FOLDER, "5", seen(6, commits=0)), seen(6, 0)), new(newest=seen(6, 0))],
        (True, commit(5)),
    ),
    "a new training": ([new(NOTHING_THERE), new()], (True, commit(0))),
    "a new training without checkpoints": ([new(NO_CHECKPOINT), new()], (True, commit(0))),
    "a later training, and files of an earlier one": (
        [new(NO_CHECKPOINT, call=NO_CALL), new(newest=seen(5))],
        (True, commit(0)),
    ),
    "a later training with a folder of its own": (
        [new(NOTHING_THERE, call=1), new(newest=seen(5))],
        (True, commit(0)),
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_training_goes_on(name):
    reports, (needs_sync, found) = GOOD[name]
    decision = decide_sync(reports)
    assert (decision.error, decision.needs_sync, decision.commit) == ("", needs_sync, found)


BAD = {
    "rank 0 does not have the state": ([new(loaded(5)), HAS_STATE, HAS_STATE], r"rank 0.* not have it.*\[1, 2\]"),
    "rank 0 has not tried": ([new(), new()], "rank 0 has not tried"),
    "no file is usable": (
        [new(LoadAttempt(None, FOLDER, error="none of /checkpoints/1 ...")), new()],
        "rank 0 cannot load a checkpoint: none of /checkpoints/1",
    ),
    "rank 1 sees files, rank 0 none": (
        [new(NOTHING_THERE), new(newest=seen(5))],
        f"{FOLDER}/aa-5 .rank 1.* finds none",
    ),
    "a worker that is dead saw files": ([new(NOTHING_THERE, known=seen(5)), new()], f"{FOLDER}/aa-5 .*finds none in"),
    "only a dead worker called checkpoint()": ([new(NO_CHECKPOINT, known=seen(5)), new()], "call it on every rank"),
    "rank 1 sees a newer file": ([new(loaded(5)), new(newest=seen(6))], f"{FOLDER}/aa-6 .*which is newer than all"),
    "a dead worker saw a newer file": ([new(loaded(5), known=seen(6)), new()], f"{FOLDER}/aa-6 .*which is newer"),
    "a newcomer sees another training": (
        [HAS_STATE, new(newest=seen(8, lineage=OTHER))],
        f"rank 1 sees the checkpoint {FOLDER}/bb-8 with 8 commits of lineage {OTHER}, and none of .* 7 .* {MINE}",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_training_ends_on_all_ranks(name):
    reports, pattern = BAD[name]
    error = decide_sync(reports).error
    assert re.search(pattern, error), error


@pytest.mark.parametrize(
    ("one", "other", "is_newer"),
    [
        (seen(1), None, True),
        (seen(3), seen(2), True),
        (seen(2), seen(3), False),
        (seen(2), seen(2), False),
        (seen(3, 500), seen(20, 200), True),  # the folders are local to two hosts, so the number of commits decides
        (seen(3, lineage=OTHER), seen(2), True),
        (
            seen(3, commits=0),
            seen(2),
            True,
        ),  # the commits of a damaged file are unknown, so the numbers in the names decide
    ],
)
def test_newer(one, other, is_newer):
    assert one.is_newer_than(other) is is_newer


def test_the_newest_of_each_call_is_remembered():
    known = merged({}, [seen(2), seen(1, call=1)])
    known = merged(known, [seen(1), seen(3, call=1), seen(1, call=-1), seen(1, call=1000)])
    assert known == {0: seen(2), 1: seen(3, call=1)}
    assert newest_of(None, *known.values()) == seen(3, call=1)
    assert newest_of(None) is None


def test_files_travel_in_messages():
    assert SeenFile.unpacked(msgpack.unpackb(msgpack.packb(seen(1 << 70, commits=1).packed()))).number == (1 << 63) - 1
    assert SeenFile.unpacked(seen(2).packed()) == seen(2)
    for message in (None, {}, {**seen(2).packed(), "number": "2"}, {**seen(2).packed(), "path": 3}):
        with pytest.raises((TypeError, KeyError)):
            SeenFile.unpacked(message)


def test_lineages_differ():
    assert start_lineage().lineage != start_lineage().lineage
    assert commit(3).following() == commit(4)
