# SPDX-License-Identifier: Apache-2.0
"""Engines accept what the table of settings accepts: random mixtures alone, all extremes at once with a peer."""

import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from horovod._engine import EngineCall, TensorLocation, World
from horovod.common import settings
from horovod.common.joining import bootstrap
from horovod.common.settings_table import TABLE, Setting
from horovod.common.topology import Topology

LIMIT_S = 20.0
HERE = "127.0.0.1"
ALLREDUCE, FLOAT32, SUM = 0, 7, 1
NUMBERS = [setting for setting in TABLE if setting.engine_field is not None and setting.type in (int, float)]
# The test excludes these settings, because the engine would really allocate the memory.
MEMORY = ("HOROVOD_CHUNK_BYTES", "HOROVOD_CHUNK_SLOTS")


def whole(setting: Setting) -> st.SearchStrategy[str]:
    return st.integers(int(setting.minimum), int(setting.maximum)).map(str)


@hypothesis_settings(max_examples=50, derandomize=True, deadline=None)
@given(st.fixed_dictionaries({}, optional={setting.name: whole(setting) for setting in NUMBERS}), st.booleans())
def test_an_engine_alone_takes_any_mixture(environ: dict[str, str], autotune: bool) -> None:
    loaded = settings.load(environ | {"HOROVOD_AUTOTUNE": str(int(autotune))})
    world = bootstrap._start_alone(loaded, Topology(), 2**31 - 1, {}, bootstrap.Wishes()).world
    try:
        check_sum([world], 1000)
    finally:
        world.close()


@pytest.mark.parametrize("end", ["minimum", "maximum"])
@pytest.mark.parametrize("shared", ["0", "1"], ids=["sockets", "memory"])
def test_two_engines_take_all_extremes_at_once(end: str, shared: str) -> None:
    extremes = {setting.name: str(int(getattr(setting, end))) for setting in NUMBERS if setting.name not in MEMORY}
    worlds = pair(settings.load(extremes | {"HOROVOD_SHARED_MEMORY": shared}))
    try:
        for _ in range(3):  # first a full request, then one by cache slot, then one on the fast path without the leader
            check_sum(worlds, 1000)
            check_sum(worlds, 1 << 21)  # 8 MiB: the maximum for a single message
    finally:
        at_once([world.close for world in worlds])


@pytest.mark.parametrize("value", [-1, 2**32, 2**63, "1", None])
def test_the_engine_itself_refuses_numbers_that_its_fields_cannot_hold(value: object) -> None:
    """Pass a number to the engine directly, without the table of settings."""
    with pytest.raises(ValueError, match="autotune_max_samples cannot hold this number"):
        World(
            rank=0,
            size=1,
            host="a",
            listen_address=HERE,
            world_id="0" * 32,
            generation=0,
            secret=b"s" * 32,
            settings={"autotune_max_samples": value},
        )


def pair(loaded: settings.Settings) -> list[World]:
    places = [Topology(rank, 2, rank, 2) for rank in range(2)]
    worlds = [bootstrap.open_world(loaded, place, 0, HERE, "0" * 32, b"s" * 32) for place in places]
    infos = [bootstrap.introduce(world, place, HERE) for world, place in zip(worlds, places, strict=True)]
    at_once([lambda world=world: world.connect(bootstrap.peers(infos), LIMIT_S) for world in worlds])
    return worlds


def check_sum(worlds: Sequence[World], count: int) -> None:
    def add(world: World) -> None:
        numbers = np.ones(count, dtype=np.float32)
        place = numbers.ctypes.data
        call, tensor = EngineCall(ALLREDUCE, SUM, will_wait=True), TensorLocation(FLOAT32, (count,), place, place)
        handle = world.submit(0, f"x{count}", call, tensor)
        assert world.wait(handle, LIMIT_S)
        world.release(handle)
        assert (numbers == len(worlds)).all()

    at_once([lambda world=world: add(world) for world in worlds])


def at_once(calls: Sequence[Callable[[], None]]) -> None:
    """Run each call in a thread of its own, then raise the first exception."""
    problems: list[BaseException] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT_S)
        assert not thread.is_alive()
    if problems:
        raise problems[0]
