# SPDX-License-Identifier: Apache-2.0
"""An elastic job with hvd.DiLoCo: one worker is killed, and a new one joins."""

import pytest
from faultkit.stateful import StatefulJob


@pytest.mark.timeout(240)  # four processes import PyTorch
def test_a_kill_and_a_join_keep_the_others_weights(tmp_path):
    with StatefulJob("elastic_local_sgd", tmp_path, 3, least=2) as job:
        first = job.stepped(0, 3)
        assert len({one["outer"] for one in first.values()}) == 1
        job.kill(first[1])
        later = job.stepped_from(1, 3)  # worker 3 has joined
        assert set(later) == {0, 2, 3}
        assert {birth: later[birth]["pid"] for birth in (0, 2)} == {birth: first[birth]["pid"] for birth in (0, 2)}
        assert all(later[birth]["inner_steps"] > first[birth]["inner_steps"] for birth in (0, 2))
        # All have made rounds together since then, so they agree on every bit of weights and momentum.
        assert len({(one["steps"], one["outer"]) for one in later.values()}) == 1
        assert later[0]["steps"] > first[0]["steps"]
        done = job.finish(3)
        assert len({one["outer"] for one in done}) == 1
