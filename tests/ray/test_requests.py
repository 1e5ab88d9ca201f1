# SPDX-License-Identifier: Apache-2.0
"""Requests that cannot be met, which are refused by name, and the numbers that ranks and nodes get."""

import time
from typing import Any

import pytest
import ray

from horovod.ray import ElasticRayExecutor, RayExecutor
from horovod.ray.capacity import NotEnoughResourcesError, fits, most_bundles
from horovod.ray.coordinator import Coordinator, slots_of
from horovod.ray.elastic import RayHostDiscovery
from horovod.ray.head import HeadNodeLostError, connect

SETTINGS = RayExecutor.create_settings()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "pass either num_workers or num_hosts .* num_workers=None, num_hosts=None"),
        ({"num_workers": 2, "num_hosts": 2}, "not both .* num_workers=2, num_hosts=2"),
        ({"num_workers": 2, "min_workers": 1}, "min_workers=1, num_workers=2"),
        ({"num_hosts": 2, "min_workers": 1}, "min_workers=1, num_workers=None, num_hosts=2"),
        ({"max_workers": 2}, "max_workers=2 requires min_workers"),
        ({"min_workers": 3, "max_workers": 2}, "min 3, max 2"),
        ({"num_workers": 2, "gpus_per_worker": 1}, "gpus_per_worker is 1, but use_gpu is False"),
        ({"num_workers": 0}, "num_workers must be at least 1, not 0"),
        ({"num_workers": 1, "cpus_per_worker": -1}, "cpus_per_worker must not be negative"),
    ],
)
def test_contradictions(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        RayExecutor(SETTINGS, **arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"num_workers": 5}, "5 workers with CPU 1 each .* at most 4: .*2 nodes with CPU 2 and GPU 2"),
        ({"num_workers": 2, "cpus_per_worker": 3}, "2 workers with CPU 3 each .* at most 0"),
        ({"num_hosts": 3}, "3 hosts with CPU 1 each .* at most 2"),
        ({"num_workers": 3, "use_gpu": True, "gpus_per_worker": 2}, "3 workers with CPU 1 and GPU 2 each .* at most 2"),
    ],
)
def test_more_than_the_cluster_can_hold_is_an_error_after_the_time_limit(arguments: dict[str, Any], text: str) -> None:
    executor = RayExecutor(RayExecutor.create_settings(placement_group_timeout_s=1), **arguments)
    begun = time.monotonic()
    with pytest.raises(NotEnoughResourcesError, match=f"{text}.* Not enough nodes joined within 1 s") as caught:
        executor.start()
    assert time.monotonic() - begun >= 1
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TimeoutError)
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        executor.run(print)


def test_what_others_hold_is_waited_for_and_then_named() -> None:
    others = ray.util.placement_group([{"CPU": 2}, {"CPU": 1}])
    assert others.wait(30)
    while ray.available_resources().get("CPU") != 1:  # nodes report to Ray's head a moment later
        time.sleep(0.05)
    try:
        executor = RayExecutor(RayExecutor.create_settings(placement_group_timeout_s=1), num_workers=2)
        with pytest.raises(TimeoutError, match="2 bundles with CPU 1 each .* within 1 s .*CPU 1 is free now"):
            executor.start()
    finally:
        ray.util.remove_placement_group(others)


def test_elastic_requests() -> None:
    with pytest.raises(ValueError, match="gpus_per_slot is 2, but use_gpu is False"):
        ElasticRayExecutor(ElasticRayExecutor.create_settings(), gpus_per_slot=2)
    executor = ElasticRayExecutor(ElasticRayExecutor.create_settings(min_num_proc=2))
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        executor.run(print)
    elastic = RayExecutor(SETTINGS, min_workers=1)
    for call in (elastic.run_remote, elastic.execute_single):
        with pytest.raises(NotImplementedError, match="is for workers that stay"):
            call(print)


def test_a_head_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(HeadNodeLostError, match="^Ray's head node at 127.0.0.1:1 does not answer"):
        connect()


def test_bundles_on_nodes() -> None:
    nodes = [{"CPU": 4.0, "GPU": 1.0}, {"CPU": 2.0}, {}]
    assert [fits(node, {"CPU": 2}) for node in nodes] == [2, 1, 0]
    assert most_bundles(nodes, {"CPU": 2}, one_for_each_node=False) == 3
    assert most_bundles(nodes, {"CPU": 2}, one_for_each_node=True) == 2
    assert fits({"GPU": 1.0}, {"GPU": 0.1}) == 10


def test_places_of_ranks_that_are_not_grouped() -> None:
    slots = slots_of({"b": [1, 3], "a": [0], "c": [2]})
    assert [(slot.hostname, slot.rank, slot.local_rank, slot.local_size) for slot in slots] == [
        ("a", 0, 0, 1),
        ("b", 1, 0, 2),
        ("c", 2, 0, 1),
        ("b", 3, 1, 2),
    ]
    assert [(slot.cross_rank, slot.cross_size) for slot in slots] == [(0, 3), (1, 3), (2, 3), (0, 1)]


def test_the_numbers_of_each_rank_are_integers() -> None:
    coordinator = Coordinator(SETTINGS)
    for rank, node in enumerate(["a", "a", "b"]):
        coordinator.register(f"name of {node}", node, rank)
    names = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"]
    assert coordinator.finalize_registration() == {
        rank: {f"HOROVOD_{name}": number for name, number in zip(names, numbers, strict=True)}
        for rank, numbers in {0: (0, 3, 0, 2, 0, 2), 1: (1, 3, 1, 2, 0, 1), 2: (2, 3, 0, 1, 1, 2)}.items()
    }


def test_discovery_reads_both_spellings_of_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    def node(name: str, **entry: Any) -> dict[str, Any]:
        return {"NodeID": name, "Resources": {"CPU": 4.0}, **entry}

    nameless = {"NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 2.0}, "alive": True}
    nodes = [node("a", Alive=True), node("b", alive=True), node("c", Alive=False), node("d", alive=False), node("e")]
    monkeypatch.setattr(ray, "nodes", lambda: [*nodes, nameless])
    assert RayHostDiscovery(cpus_per_slot=2).find_available_hosts_and_slots() == {"a": 2, "b": 2, "10.0.0.1": 1}
