# SPDX-License-Identifier: Apache-2.0
"""Network part of the benchmarks: which transports are compared, and how the pages show them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchkit.ledger import Ledger, Sample, read
from benchkit.libraries import _agent

RUN = {"run": "2026-03-03T00:00:00Z", "quick": False}
MACHINE = {"cores": 2, "processor": "Test-CPU", "architecture": "x", "memory_gib": 1, "kernel": "6", "python": "3"}
MACHINE |= {"numpy": "2", "load_before": 0.0}
ROUNDS = [[1e-3, 1.1e-3, 0.9e-3]] * 5


def times(factor: float) -> list[list[float]]:
    return [[factor * value for value in one] for one in ROUNDS]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "made.jsonl", RUN | {"machine": MACHINE})


def add_collective(ledger: Ledger, ranks: int, more: dict[str, float]) -> None:
    case = {"op": "allreduce", "bytes": 25 << 20, "hosts": 2, "ranks": ranks}
    ways = {"khorovod": 1.0, "gloo": 2.0, "openmpi": 0.5, "floor": 0.95} | more
    samples = [Sample(way, way, times(factor)) for way, factor in ways.items()]
    ledger.add("network", case, samples, [way for way in ways if way.startswith("khorovod")])


def pages(ledger: Ledger, folder: Path) -> tuple[str, str]:
    pytest.importorskip("matplotlib")
    from benchkit.page import write_page

    overview, full, hosts, *_ = write_page(folder, [read(ledger.path)], folder)
    return f"{overview.read_text(encoding='utf-8')}\n{hosts.read_text(encoding='utf-8')}", full.read_text(
        encoding="utf-8"
    )


def rows_after(page: str, heading: str) -> list[list[str]]:
    lines = page.split(f"# {heading}\n")[1].split("\n#")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def test_each_layout_has_a_table_with_peers_our_other_ways_and_the_floor(ledger: Ledger, tmp_path: Path) -> None:
    add_collective(ledger, 2, {})
    add_collective(ledger, 4, {"khorovod, flat": 1.5})
    _, full = pages(ledger, tmp_path)
    assert rows_after(full, "Between 2 hosts, 1 on each")[0] == ["", "time", "gloo", "openmpi", "above the floor"]
    headings, _, row = rows_after(full, "Between 2 hosts, 2 on each")
    assert headings == ["", "time", "gloo", "openmpi", "flat", "above the floor"]
    assert row[0] == "allreduce, 25 MB"
    assert [cell.partition(" ")[0] for cell in row[2:]] == ["2.00", "**0.5**", "1.50", "1.05"]


def test_ways_that_nobody_gets_by_default_win_nothing(ledger: Ledger, tmp_path: Path) -> None:
    add_collective(ledger, 4, {"khorovod, flat": 0.1})
    overview, full = pages(ledger, tmp_path)
    assert "| network: openmpi | 1 | 0 | 1 |" in full
    assert "faster than Gloo in all 1 comparisons; faster than Open MPI in 0 of 1, slower in 1" in overview.replace(
        "\n  ", " "
    )
    assert rows_after(overview, "Between hosts")[2] == ["2 x 2", "allreduce, 25 MB", "1 ms", "2.00", "**0.5**"]


def test_streams_are_shown_by_link(ledger: Ledger, tmp_path: Path) -> None:
    samples = [Sample("khorovod", "k", times(1.0)), Sample("khorovod, 4 streams", "k", times(0.25))]
    case = {"bytes": 1 << 20, "hosts": 2, "ranks": 2, "link": "20 ms"}
    ledger.add("network links", case, samples, [sample.way for sample in samples])
    headings, _, row = rows_after(pages(ledger, tmp_path)[1], "Slow links")
    assert (headings, row[0], row[2].partition(" ")[0]) == (["", "time", "4 streams"], "20 ms, 1 MB", "**0.25**")


def test_a_training_step_between_hosts_has_its_cost(ledger: Ledger, tmp_path: Path) -> None:
    more: dict[str, Any] = {"peak_mib": 100.0, "tensors": 161, "parameters": 25_000_000}
    cost = {"cost": {"value": 1000.0, "low": 900.0, "high": 1100.0}}
    samples = [Sample("independent", "t", times(1.0), more), Sample("khorovod", "k", times(2.0), more | cost)]
    ledger.add("network training", {"workload": "tensors", "hosts": 2, "ranks": 4}, samples, ["khorovod"])
    _, full = pages(ledger, tmp_path)
    title = "Training step between 2 hosts, 4 ranks: the 161 tensors of ResNet-50, next to no compute"
    assert rows_after(full, title)[3][:4] == ["khorovod", "2 ms", "1 ms (900 µs to 1.1 ms)", "+100.0%"]


def test_our_engine_is_told_what_to_do_only_where_there_is_a_choice() -> None:
    from benchkit.parts.network import FLAT, LAYERED, ways_of_ours

    assert ways_of_ours(1, quick=False) == {"khorovod": {}}
    assert list(ways_of_ours(2, quick=True)) == ["khorovod", FLAT]
    assert set(ways_of_ours(2, quick=False)[LAYERED].values()) == {"1"}
    assert set(ways_of_ours(2, quick=False)[FLAT].values()) == {"0"}


class TwoHosts:
    interface, neighbours = "eth0", 2

    def name(self, rank: int) -> str:
        return f"h{rank // 2}"

    def address(self, rank: int) -> str:
        return f"10.0.0.{rank // 2 + 1}"

    def inside(self, rank: int) -> list[str]:
        return ["enter", self.name(rank)]


def test_open_mpi_reaches_each_host_once_by_its_address() -> None:
    script = _agent(TwoHosts(), 4)
    assert [line.partition(" unshare")[0] for line in script.splitlines() if ") exec" in line] == [
        "10.0.0.1) exec enter h0",
        "10.0.0.2) exec enter h1",
    ]


def test_stored_lines_of_the_network_name_collective_and_hosts() -> None:
    from testkit.places import ROOT

    for path in (ROOT / "benchmarks" / "results").glob("*.jsonl"):
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            if line.get("part") == "network" and "left out" not in line["case"]:
                assert {"op", "bytes", "hosts", "ranks"} == set(line["case"])
