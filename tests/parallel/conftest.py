# SPDX-License-Identifier: Apache-2.0
"""Gives a test its world of live ranks, and orders the tests so that each world is started once."""

import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness.pool import Pool, Pools

hypothesis.settings.register_profile(
    "parallel",
    deadline=None,  # an example is a round trip to several processes
    max_examples=20,
    # A failing example kills the world, so shrinking would cost one start of all ranks for each attempt.
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
    database=None,
    print_blob=True,
)


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    with Pools() as pools:
        yield pools


@pytest.fixture
def world(request: pytest.FixtureRequest, pools: Pools) -> Pool:
    """The ranks of the world that the test is parametrised with, alive and in step."""
    return pools.get(request.param)


@pytest.fixture(autouse=True, scope="session")
def hypothesis_profile() -> None:
    hypothesis.settings.load_profile("parallel")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    mine = [item for item in items if str(item.path).startswith(here)]
    others = [item for item in items if not str(item.path).startswith(here)]
    items[:] = others + sorted(mine, key=_world_of)


def _world_of(item: pytest.Item) -> str:
    spec = item.callspec.params.get("world") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    return "" if spec is None else spec.name
