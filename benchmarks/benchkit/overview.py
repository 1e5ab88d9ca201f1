# SPDX-License-Identifier: Apache-2.0
"""Page docs/performance.md, for readers: a verdict, plots and six short tables from stored results."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from benchkit import tables
from benchkit.ledger import Record, Results
from benchkit.tables import Case
from benchkit.training import WORKLOADS
from benchkit.units import size_text, time_text

_NAMES = {"gloo": "Gloo", "openmpi": "Open MPI", "mpich": "MPICH", "ddp": "DDP"}
_NAMES |= {f"ddp, {variant}": f"DDP, {variant}" for variant in ("bucket view", "static graph")}
_KB, _MB = 2**10, 2**20
_TYPICAL_SIZES = (_KB, _MB, 100 * _MB)  # sizes shown for the five collectives if they were measured
_SCALING_SIZES = (4, 25 * _MB)

_BEGINNING = """\
# Performance

Made by `python benchmarks/report.py --page` from stored results; do not edit. This command measured all times:

```console needs=network
$ python benchmarks/report.py
```

It also writes every size, type and machine, with confidence intervals, to `bench-output/performance-tables.md`.
[Benchmarks](../benchmarks/README.md) says how to install the peers and measure on your machine.
See also [performance between hosts](performance-hosts.md) and [on GPUs](performance-gpus.md).

## Verdict
"""
READING = """\

In all tables, `ours` is the median time of Khorovod's ordinary API on ordinary memory.
The column of a peer says **how many times as long the peer takes**.
Both were measured alternately in one run on the same cores.
Bold means that the peer is faster with 95 % confidence.
"""


@dataclass
class _Count:
    """Number of comparisons with a peer, and of those that are decided beyond chance."""

    points: int = 0
    faster: int = 0
    slower: int = 0


def overview(machines: Sequence[Results], pictures: Collection[str]) -> str:
    """Return the page. `pictures`: the files that the full tables show, some of which this page also shows."""
    if not any(machine.cases for machine in machines):
        return _BEGINNING + "\nNo results are stored yet.\n"
    lines = [_BEGINNING, *map(_wrapped, _verdict(machines)), READING]
    for machine, name, text in (
        (_largest(machines, "collectives"), "collectives-2", "time of the collectives by size on 2 ranks"),
        (_largest(machines, "scaling"), "scaling", "time of an allreduce by ranks"),
        (_largest(machines, "training"), "training", "cost of a training step above independent processes"),
    ):
        if machine is not None and (file := f"performance-{machine.kind}-{name}.svg") in pictures:
            lines += [f"![{text}]({file})", ""]
    for part in (_counts_section, _allreduce, _five, _scaling, _training, _small):
        lines += part(machines)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _verdict(machines: Sequence[Results]) -> Iterator[str]:
    for machine in machines:
        contests = list(contests_of([case for case in machine.cases if case[0]["part"] == "collectives"]))
        if contests:
            met = [_sentence(peer, count) for peer, count in _counts(contests).items()]
            lost = [record["case"]["bytes"] for record, found in contests if found["high"] < 1]
            where = f" Every loss is at messages of {size_text(max(lost))} or less." if lost else ""
            yield f"- **Collectives, {name_of(machine)}:** {'; '.join(met)}.{where}"
        between = list(contests_of(machine.of("network")))
        if between:
            met = [_sentence(peer, count) for peer, count in _counts(between).items()]
            yield f"- **Between hosts, {name_of(machine)}:** {'; '.join(met)}."
        for case in machine.of("training")[:1]:
            costs = {record["way"]: _percent(case, record) for record in case if "cost" in record}
            shown = [
                f"{costs[way]} with {name}" for way, name in (("khorovod", "Khorovod"), ("ddp", "DDP")) if way in costs
            ]
            workload = WORKLOADS[case[0]["case"]["workload"]]
            longer = f"communication makes a step longer by {' and '.join(shown)} ({workload})."
            yield f"- **Training, {name_of(machine)}:** {longer}"


def _wrapped(item: str) -> str:
    return textwrap.fill(item, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _sentence(peer: str, count: _Count) -> str:
    name = _NAMES.get(peer, peer)
    if count.faster == count.points:
        return f"faster than {name} in all {count.points} comparisons"
    lost = f", slower in {count.slower}" if count.slower else ""
    return f"faster than {name} in {count.faster} of {count.points}{lost}"


def _counts_section(machines: Sequence[Results]) -> list[str]:
    rows = []
    for machine in machines:
        for peer, count in _counts(contests_of(machine.cases)).items():
            cells = [count.points, count.faster, count.slower]
            rows.append([name_of(machine), _NAMES.get(peer, peer), *map(str, cells)])
    text = "All parts of the benchmark together: collectives, data types, TCP, launching, training."
    headings = ["machine", "against", "comparisons", "we are faster", "we are slower"]
    return section("Who is faster", text, headings, rows)


def _allreduce(machines: Sequence[Results]) -> list[str]:
    machine = _largest(machines, "collectives")
    cases = machine.of("collectives", ranks=2, op="allreduce") if machine is not None else []
    peers, rows = peers_of(cases), []
    for case in cases:
        shared = next((record for record in case if record["way"] == "khorovod, shared"), None)
        in_shared = time_text(shared["median"]) if shared is not None else ""
        rows.append([size_text(case[0]["case"]["bytes"]), *row_of(case, peers), in_shared])
    headings = ["size", *headings_of(peers), "ours, in shared memory"]
    return section("Allreduce by size", f"Two ranks, {name_of(machine)}.", headings, rows)


def _five(machines: Sequence[Results]) -> list[str]:
    machine = _largest(machines, "collectives")
    cases = machine.of("collectives", ranks=2) if machine is not None else []
    cases = [case for case in cases if case[0]["case"]["bytes"] in _TYPICAL_SIZES]
    peers = peers_of(cases)
    rows = [[what_of(case), *row_of(case, peers)] for case in cases]
    return section("The five collectives", f"Two ranks, {name_of(machine)}.", ["", *headings_of(peers)], rows)


def what_of(case: Case) -> str:
    return f"{case[0]['case']['op']}, {size_text(case[0]['case']['bytes'])}"


def _scaling(machines: Sequence[Results]) -> list[str]:
    machine = _largest(machines, "scaling")
    cases = machine.of("scaling") if machine is not None else []
    cases = [case for case in cases if case[0]["case"]["bytes"] in _SCALING_SIZES]
    cases.sort(key=lambda case: (case[0]["case"]["bytes"], case[0]["case"]["ranks"]))
    peers = peers_of(cases)
    rows = [
        [size_text(case[0]["case"]["bytes"]), str(case[0]["case"]["ranks"]), *row_of(case, peers)] for case in cases
    ]
    return section("More ranks", f"Allreduce, {name_of(machine)}.", ["size", "ranks", *headings_of(peers)], rows)


def _training(machines: Sequence[Results]) -> list[str]:
    machine = _largest(machines, "training")
    rows = []
    for case in machine.of("training") if machine is not None else []:
        by_way = {record["way"]: record for record in case}
        bound = next((record for record in case if tables.is_floor(record)), None)
        cells = [WORKLOADS[case[0]["case"]["workload"]], time_text(bound["median"]) if bound is not None else ""]
        rows.append([*cells, *(_percent(case, by_way.get(way)) for way in ("khorovod", "ddp"))])
    text = f"Two ranks with one thread each, {name_of(machine)}: what communication adds to a step of processes that"
    text += "\ndo not communicate."
    return section("Training step", text, ["model", "step without communication", "ours adds", "DDP adds"], rows)


def _percent(case: Case, record: Record | None) -> str:
    bound = next((one for one in case if tables.is_floor(one)), None)
    if record is None or bound is None or "cost" not in record:
        return ""
    return f"{record['cost']['value'] / bound['median']:.1%}"


def _small(machines: Sequence[Results]) -> list[str]:
    machine = _largest(machines, "small")
    cases = machine.of("small") if machine is not None else []
    ways = [way for way in dict.fromkeys(record["way"] for case in cases for record in case) if "address" not in way]
    rows = []
    for case in cases:
        found = {it["way"]: f"{time_text(it['median'])}, {time_text(it['p99'])}" for it in case}
        many = f"{case[0]['case']['tensors']} at once of " if case[0]["case"]["tensors"] > 1 else ""
        rows.append([many + size_text(case[0]["case"]["bytes"]), *(found.get(way, "") for way in ways)])
    text = (
        f"Allreduce, two ranks, {name_of(machine)}: median and 99th percentile. The floor is a bare C program that only"
    )
    text += "\nmoves the bytes."
    names = {"khorovod": "ours", "floor": "floor"} | _NAMES
    return section("Small messages", text, ["", *(names.get(way, way) for way in ways)], rows)


def section(title: str, text: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["", f"## {title}", "", text, "", *tables.markdown(headings, rows)] if rows else []


def headings_of(peers: Sequence[str]) -> list[str]:
    return ["ours", *(_NAMES.get(peer, peer) for peer in peers)]


def row_of(case: Case, peers: Sequence[str]) -> list[str]:
    own = next(record for record in case if record["way"] == tables.OURS)
    return [time_text(own["median"]), *(tables.ratio(case, peer, own, interval=False) for peer in peers)]


def peers_of(cases: Sequence[Case]) -> list[str]:
    found = dict.fromkeys(record["way"] for case in cases for record in case)
    return [way for way in found if not way.startswith((tables.OURS, *tables.FLOORS))]


def contests_of(cases: Sequence[Case]) -> Iterator[tuple[Record, Record]]:
    """Yield each peer's record with its ratio to Khorovod's default way. Khorovod's own float32 is not a peer."""
    for case in cases:
        for record in case:
            if not tables.is_ours(record) and not tables.is_floor(record) and record["way"] != "float32":
                found = record.get("against", {}).get(tables.OURS)
                if found is not None:
                    yield record, found


def _counts(contests: Iterator[tuple[Record, Record]] | Sequence[tuple[Record, Record]]) -> dict[str, _Count]:
    counts: dict[str, _Count] = {}
    for record, found in contests:
        count = counts.setdefault(record["way"], _Count())
        count.points += 1
        count.faster += found["low"] > 1
        count.slower += found["high"] < 1
    return counts


def _largest(machines: Sequence[Results], part: str) -> Results | None:
    """Return the machine with the most cores among those with results for this part."""
    having = [machine for machine in machines if machine.of(part)]
    return max(having, key=_cores, default=None)


def _cores(machine: Results) -> int:
    return max(run["machine"]["cores"] for run in machine.runs.values())


def name_of(machine: Results | None) -> str:
    if machine is None:
        return ""
    facts = next(iter(machine.runs.values()))["machine"]
    return f"{facts['processor'].replace('(R)', '')}, {facts['cores']} cores"
