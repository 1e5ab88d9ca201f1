# SPDX-License-Identifier: Apache-2.0
"""How the simulated slow link of the tests treats each frame."""

from testkit.slow_links import Cable


def test_frames_take_their_time_and_keep_their_order() -> None:
    cable = Cable(delay_s=0.5)
    assert [cable.due(now) for now in (1.0, 1.25, 1.25)] == [1.5, 1.75, 1.75]


def test_nothing_comes_out_of_a_stalled_cable_until_it_is_over() -> None:
    told: list[float] = []
    cable = Cable(delay_s=0.5, stalls=[(2, 3.0), (4, 1.0)], on_stall=told.append)
    assert cable.due(1.0) == 1.5
    assert told == []
    assert cable.due(2.0) == 2.0 + 3.0 + 0.5
    assert cable.due(4.0) == 2.0 + 3.0 + 0.5
    assert cable.due(9.0) == 9.0 + 1.0 + 0.5
    assert told == [3.0, 1.0]
    assert cable.due(20.0) == 20.5


def test_so_many_frames_are_lost_as_it_was_told() -> None:
    cable = Cable(delay_s=0.0, loss=0.1)
    lost = sum(cable.due(0.0) is None for _ in range(5000))
    assert 400 < lost < 600
