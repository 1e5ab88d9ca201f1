# SPDX-License-Identifier: Apache-2.0
"""Markdown tables from the ledger's records: medians with intervals, ratios to each peer, distance from the floor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from benchkit.ledger import Record
from benchkit.units import time_text

OURS, FLOORS = "khorovod", ("floor", "independent")
# Ways that are not the default; they are measured to check Khorovod's own choice.
_NOT_OURS_TO_BOAST = ("address", "flat", "hierarchical", "streams")
Case = list[Record]


def is_ours(record: Record) -> bool:
    return str(record["way"]).startswith(OURS)


def is_floor(record: Record) -> bool:
    return str(record["way"]).startswith(FLOORS)


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    aligned = [":--", *["--:"] * (len(headings) - 1)]
    return ["| " + " | ".join(cells) + " |" for cells in (headings, aligned, *rows)]


def comparison(cases: Sequence[Case], label: Callable[[Record], str]) -> list[str]:
    """Return a row for each case and way of Khorovod: how many times longer each peer takes, and the floor."""
    peers = list(dict.fromkeys(it["way"] for case in cases for it in case if not is_ours(it) and not is_floor(it)))
    with_floor = any(is_floor(it) for case in cases for it in case)
    with_ways = any(sum(map(is_ours, case)) > 1 for case in cases)
    headings = ["", *["ours"] * with_ways, "time", *peers, *["above the floor"] * with_floor]
    rows = []
    for case in cases:
        for own in filter(is_ours, case):
            cells = [label(case[0]["case"])]
            if with_ways:
                cells.append(own["way"].removeprefix(OURS).removeprefix(", ") or "default")
            cells.append(f"{time_text(own['median'])} ({time_text(own['low'])} to {time_text(own['high'])})")
            cells += [ratio(case, peer, own) for peer in peers]
            cells += [_above_floor(case, own)] if with_floor else []
            rows.append(cells)
    return markdown(headings, rows)


def our_choice(cases: Sequence[Case], label: Callable[[Record], str]) -> list[str]:
    """Return a row for each case: how many times longer each peer takes, and each other way of Khorovod."""
    others = list(dict.fromkeys(it["way"] for case in cases for it in case if it["way"] != OURS and not is_floor(it)))
    others.sort(key=lambda way: way.startswith(OURS))
    with_floor = any(is_floor(it) for case in cases for it in case)
    headings = ["", "time", *(way.removeprefix(f"{OURS}, ") for way in others), *["above the floor"] * with_floor]
    rows = []
    for case in cases:
        for own in (record for record in case if record["way"] == OURS):
            time = f"{time_text(own['median'])} ({time_text(own['low'])} to {time_text(own['high'])})"
            floor = [_above_floor(case, own)] if with_floor else []
            rows.append([label(case[0]["case"]), time, *(ratio(case, way, own) for way in others), *floor])
    return markdown(headings, rows)


def percentiles(cases: Sequence[Case], label: Callable[[Record], str]) -> list[str]:
    """Return a table of the medians and 99th percentiles of all ways."""
    ways = list(dict.fromkeys(record["way"] for case in cases for record in case))
    rows = []
    for case in cases:
        found = {it["way"]: f"{time_text(it['median'])}, {time_text(it['p99'])}" for it in case}
        rows.append([label(case[0]["case"]), *(found.get(way, "") for way in ways)])
    return markdown(["median, p99", *ways], rows)


def floor_of(case: Case, own: Record) -> Record | None:
    """Return the floor for this way's kind of memory if it was measured, else the floor for ordinary memory."""
    by_way = {record["way"]: record for record in case if is_floor(record)}
    return by_way.get(own["way"].replace(OURS, "floor")) or next((by_way[way] for way in FLOORS if way in by_way), None)


def ratio(case: Case, peer: str, own: Record, interval: bool = True) -> str:
    """Return how many times as long the peer takes; bold where it is faster beyond chance."""
    record = next((record for record in case if record["way"] == peer), None)
    if record is None or own["way"] not in record["against"]:
        return ""
    found = record["against"][own["way"]]
    value = f"**{short(found['value'])}**" if found["high"] < 1 else short(found["value"])
    return f"{value} ({short(found['low'])} to {short(found['high'])})" if interval else value


def _above_floor(case: Case, own: Record) -> str:
    floor = floor_of(case, own)
    if floor is None:
        return ""
    found = floor["against"][own["way"]]
    return f"{short(1 / found['value'])} ({short(1 / found['high'])} to {short(1 / found['low'])})"


def training_costs(case: Case) -> list[str]:
    """Return a table of what each way adds to the step of independent processes, and of a rank's peak memory."""
    bound = next((record for record in case if is_floor(record)), None)
    rows = []
    for record in case:
        cells = [record["way"], time_text(record["median"]), "", "", "", f"{record['peak_mib']:.0f} MiB"]
        if bound is not None and "cost" in record:
            cost = record["cost"]
            cells[2] = f"{signed(cost['value'])} ({signed(cost['low'])} to {signed(cost['high'])})"
            cells[3] = f"{cost['value'] / bound['median']:+.1%}"
            cells[4] = signed(cost["value"] / record["tensors"])
        rows.append(cells)
    return markdown(["way", "step", "above the bound", "of the bound", "for each tensor", "peak memory"], rows)


def idle(case: Case) -> list[str]:
    rows = [
        [
            record["way"],
            f"{record['added_mib']:.1f} MiB",
            f"{record['idle_cpu_percent']:.2g} %",
            f"{record['idle_wakeups_per_s']:.3g}",
        ]
        for record in case
    ]
    return markdown(["", "memory added by import and init", "of a core while idle", "wake-ups per second"], rows)


def verdicts(cases: Sequence[Case]) -> list[str]:
    """Return for each part and peer how often the best of Khorovod's default ways is faster or slower beyond chance."""
    counts: dict[tuple[str, str], list[int]] = {}
    for case in cases:
        for record in case:
            if is_ours(record) or is_floor(record) or record["way"] == "float32" or not record.get("against"):
                continue  # Khorovod's own float32 is not a peer
            doors = [found for way, found in record["against"].items() if not way.endswith(_NOT_OURS_TO_BOAST)]
            best = max(doors, key=lambda found: float(found["value"]))
            count = counts.setdefault((record["part"], record["way"]), [0, 0, 0])
            for index, true in enumerate((True, best["low"] > 1, best["high"] < 1)):
                count[index] += true
    rows = [[f"{part}: {way}", *map(str, count)] for (part, way), count in counts.items()]
    return markdown(["against", "points", "ours is faster", "ours is slower"], rows)


def signed(microseconds: float) -> str:
    return ("-" if microseconds < 0 else "") + time_text(abs(microseconds))


def short(value: float) -> str:
    return f"{value:.0f}" if value >= 99.5 else f"{value:.2f}" if 1 <= value < 10 else f"{value:.2g}"
