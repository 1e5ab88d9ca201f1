# SPDX-License-Identifier: Apache-2.0
"""Fixtures that give a test its world of live ranks, and the order of tests that starts each world once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.pool import Pool, Pools
from testkit.preloaded import JAX, TENSORFLOW, TORCH, Preloaded

MODULES = {"torch": TORCH, "torch_dist": TORCH, "tensorflow": TENSORFLOW, "keras": TENSORFLOW, "jax": JAX}
TEST_LIMIT_S = 240  # seconds; the first test of a world also starts its ranks and imports a framework


@pytest.fixture(scope="session")
def pools(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pools]:
    """Yield the pools of worlds. Ranks are forked from a process that has imported the selected tests' frameworks."""
    folders = dict.fromkeys(item.path.parent.name for item in request.session.items)
    modules = dict.fromkeys(module for folder in folders for module in MODULES.get(folder, ()))
    if not modules:
        with Pools({}) as pools:
            yield pools
        return
    path = str(tmp_path_factory.mktemp("worlds") / "preloaded")
    with Preloaded(path, tuple(modules), {}) as server, Pools(server.variables) as pools:
        yield pools


@pytest.fixture
def world(request: pytest.FixtureRequest, pools: Pools) -> Pool:
    """Return the ranks of the world that the test is parametrised with, alive and in step."""
    return pools.get(request.param)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    mine = [item for item in items if str(item.path).startswith(here)]
    others = [item for item in items if not str(item.path).startswith(here)]
    for item in mine:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_LIMIT_S))
    items[:] = others + sorted(mine, key=_world_of)


def _world_of(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    return callspec.params["world"].name if callspec is not None and "world" in callspec.params else ""
