# SPDX-License-Identifier: Apache-2.0
"""Storage of commits: two alternating slots, reused memory, complete copies."""

import threading
from collections import OrderedDict

import numpy as np
import pytest

from horovod.common.elastic import ObjectState
from horovod.common.slots import Slots, check_arrays, copied


def address(array):
    return array.__array_interface__["data"][0]


def test_after_the_first_two_nothing_is_allocated():
    slots = Slots()
    value = {"weights": [np.zeros(5), (np.zeros((2, 3), np.int32), 1)], "step": 0}
    seen = []
    for step in range(6):
        value["weights"][0] += 1
        value["step"] = step
        slots.save(value)
        kept = slots.current
        assert kept["step"] == step
        assert (kept["weights"][0] == step + 1).all()
        seen.append((address(kept["weights"][0]), address(kept["weights"][1][0])))
    assert seen[2:] == seen[:2] * 2
    assert len(set(seen)) == 2


def test_other_shapes_and_types_get_memory_of_their_own():
    slots = Slots()
    for value in (np.zeros(3), np.zeros(4), np.zeros(3, np.float32), np.zeros(3), [np.zeros(3)], None, np.zeros(3)):
        slots.save(value)
        np.testing.assert_equal(slots.current, value)
        assert type(slots.current) is type(value)


def test_what_is_interrupted_leaves_the_one_before():
    slots = Slots()
    slots.save([np.ones(3), 1])
    slots.save([np.full(3, 2.0), 2])
    slots.prepare([np.full(3, 3.0), 3])  # and not saved
    assert slots.current[1] == 2
    with pytest.raises(TypeError):
        slots.prepare([np.full(3, 4.0), threading.Lock()])  # fails in the middle of the copy
    np.testing.assert_equal(slots.current, [np.full(3, 2.0), 2])


def test_what_is_pinned_stays_for_whoever_reads_it():
    slots = Slots()
    slots.save(np.full(3, 1.0))
    pinned = slots.pin()
    for value in range(2, 6):
        slots.save(np.full(3, float(value)))
        assert (pinned == 1).all()
        assert (slots.current == value).all()
    slots.release()
    seen = set()
    for _ in range(6):
        slots.save(np.zeros(3))
        seen.add(address(slots.current))
    assert len(seen) <= 3


def test_copies_are_deep_and_keep_who_is_who():
    shared = [1]
    value = {"a": shared, "b": shared, "self": None}
    value["self"] = value
    result = copied(value)
    assert result["a"] is result["b"] is not shared
    assert result["self"] is result
    ordered = OrderedDict(b=1, a=np.zeros(2))
    ordered._metadata = {"version": 1}
    again = copied(ordered, copied(ordered))
    assert type(again) is OrderedDict
    assert list(again) == ["b", "a"]
    assert again._metadata == {"version": 1}


def test_a_state_of_objects_commits_all_or_nothing():
    state = ObjectState(lambda value: value, lambda: 0, weights=np.zeros(3), step=0)
    state.weights += 1
    state.step = 1
    state.save()
    state.weights += 1
    state.step = threading.Lock()
    with pytest.raises(TypeError, match="cannot keep 'step'"):
        state.save()
    state.restore()
    assert state.step == 1
    assert (state.weights == 1).all()


def test_arrays_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"shapes \[\(2,\)\], the state's \[\(3,\)\]"):
        check_arrays([np.zeros(2)], [np.zeros(3)])
