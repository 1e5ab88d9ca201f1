# SPDX-License-Identifier: Apache-2.0
"""Sums of byte counters over all worlds that a process has had."""

import json

from horovod.common.byte_counters import counted_by, total


def test_the_sums_of_two_worlds() -> None:
    assert total({}, {"sent": 3}) == {"sent": 3}
    assert total({"sent": 2, "received": 1}, {"sent": 3, "received": 0}) == {"sent": 5, "received": 1}


def test_what_one_world_does_not_know_nobody_knows() -> None:
    assert total({"sent": None, "read": 1}, {"sent": 3, "read": 2}) == {"sent": None, "read": 3}
    assert total({"sent": 3}, {"sent": None}) == {"sent": None}


def test_they_are_part_of_the_engines_description() -> None:
    assert counted_by(json.dumps({"streams": 1, "counters": {"sent": None, "read": 5}})) == {"sent": None, "read": 5}
