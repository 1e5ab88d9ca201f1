# SPDX-License-Identifier: Apache-2.0
"""Pictures of the performance page, made from the ledger's records."""

from __future__ import annotations

from benchkit import bars, curves
from benchkit.ledger import Record, Results
from benchkit.tables import Case
from benchkit.training import WORKLOADS
from benchkit.units import size_text


def collectives(results: Results, ranks: int) -> str | None:
    """Draw time by size, in one panel for each collective."""
    panels: dict[str, dict[str, list[curves.Point]]] = {}
    for case in results.of("collectives", ranks=ranks):
        _add(panels.setdefault(case[0]["case"]["op"], {}), case, case[0]["case"]["bytes"])
    if not panels:
        return None
    title = f"Collectives on {ranks} ranks: time by size"
    subtitle = "float32, common starts; medians, bands from p10 to p90; lower is better"
    drawn = [curves.Panel(op, found) for op, found in panels.items()]
    return curves.draw(title, subtitle, _footer(results), drawn)


def scaling(results: Results) -> str | None:
    """Draw time by ranks, in one panel for each size."""
    panels: dict[int, dict[str, list[curves.Point]]] = {}
    for case in results.of("scaling"):
        _add(panels.setdefault(case[0]["case"]["bytes"], {}), case, case[0]["case"]["ranks"])
    if not panels:
        return None
    title, subtitle = "Allreduce: how its time grows with the ranks", "float32; medians, bands from p10 to p90"
    drawn = [curves.Panel(size_text(size), found, "ranks") for size, found in panels.items()]
    return curves.draw(title, subtitle, _footer(results), drawn)


def training(results: Results) -> str | None:
    """Draw bars of what each way adds to a step."""
    groups: dict[str, list[bars.Bar]] = {}
    for case in results.of("training"):
        workload = WORKLOADS[case[0]["case"]["workload"]]
        groups[workload] = [
            bars.Bar(record["way"], **record["cost"], note=f" ({record['peak_mib']:.0f} MiB)")
            for record in case
            if "cost" in record
        ]
    if not groups:
        return None
    subtitle = "2 ranks, one thread each; 95 % intervals; peak memory of a rank in brackets"
    title = "Cost of a training step above independent processes"
    return bars.draw(title, subtitle, _footer(results), groups)


def _add(found: dict[str, list[curves.Point]], case: Case, x: int) -> None:
    for record in case:
        point = curves.Point(x, record["median"], record["p10"], record["p90"])
        found.setdefault(record["way"], []).append(point)


def _footer(results: Results) -> str:
    run: Record = max(results.runs.values(), key=lambda one: str(one["run"]))
    facts = run["machine"]
    return f"{facts['processor']}, {facts['cores']} cores, Linux {facts['kernel']}, {run['run'][:10]}"
