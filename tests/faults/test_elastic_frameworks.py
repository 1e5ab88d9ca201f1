# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs of each installed framework: a worker is killed, and compiled steps continue on the others."""

import importlib.util

import pytest
from faultkit.stateful import StatefulJob

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}


def cases():
    """Return the frameworks to test. PyTorch is skipped where TensorFlow or JAX is installed, as others test it."""
    there = {name: importlib.util.find_spec(name) is not None for name in ("tensorflow", "keras", "jax", "torch")}
    there["torch"] = there["torch"] and not (there["tensorflow"] or there["jax"])
    missing = {name: [pytest.mark.skip(f"{name} is not tested here")] for name, found in there.items() if not found}
    return [pytest.param(name, marks=missing.get(name, [])) for name in there]


@pytest.mark.timeout(240)  # four processes import the framework, three of them at the same time
@pytest.mark.parametrize("framework", cases())
def test_compiled_steps_survive_the_loss_of_a_worker(tmp_path, framework, forking):
    with StatefulJob("elastic_frameworks", tmp_path, 3, framework, env=QUIET | forking(framework), least=2) as job:
        first = job.stepped(0, 3)
        job.kill(first[1])
        # The replacement gets the state and its predecessor's rank in the set. The others may have made steps before.
        later = job.stepped_from(1, 3)
        assert set(later) == {0, 2, 3}
        assert {birth: later[birth]["pid"] for birth in (0, 2)} == {birth: first[birth]["pid"] for birth in (0, 2)}
        assert len({one["steps"] for one in later.values()}) == 1
        assert later[0]["steps"] > first[0]["steps"]
        if framework != "keras":
            assert (first[0]["in_pair"], later[0]["in_pair"], later[3]["in_pair"]) == (2, 2, 2)
            assert later[2]["in_pair"] is None
        if framework != "torch":
            assert later[0]["traces"] == first[0]["traces"]  # compiled functions are reused
        job.finish(3)
