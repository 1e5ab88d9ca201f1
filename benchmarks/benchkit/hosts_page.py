# SPDX-License-Identifier: Apache-2.0
"""Pages docs/performance-hosts.md and docs/performance-gpus.md: results between hosts and on GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchkit import gpu_page, tables
from benchkit.ledger import Record, Results
from benchkit.overview import READING, contests_of, headings_of, name_of, peers_of, row_of, section, what_of
from benchkit.units import size_text, time_text

_ON_GPUS = Path(__file__).resolve().parents[1] / "results" / "gpu"
_KB, _MB = 2**10, 2**20
_SIZES = (4, _MB, 25 * _MB)
_MANY_HOSTS = {
    "start_s": "seconds to `init()`",
    "first_s": "seconds to the first result",
    "pss_mb": "MB of memory",
    "streams_after_allreduce": "connections after allreduces",
    "streams": "connections after all collectives",
}

_HOSTS = """\
# Performance between hosts

Made by `python benchmarks/report.py --page` from stored results; do not edit. Hosts are network namespaces of one
machine, joined by TCP: they share its cores, and packets cost processor time, but no wire. See also
[performance](performance.md) on one host. The commands:

```console needs=network
$ python benchmarks/report.py --only network
$ python benchmarks/many_hosts.py
```
"""
_GPUS = """\
# Performance on GPUs

Made by `python benchmarks/report.py --page` from stored results; do not edit. The command:

```console needs=gpu
$ python benchmarks/gpu.py
```
"""


def hosts_page(machines: Sequence[Results]) -> str:
    """Return the page about hosts."""
    lines = [*_collectives(machines), *_many_hosts(machines)]
    return _page(_HOSTS + READING if lines else _HOSTS, lines)


def gpus_page() -> str:
    """Return the page about GPUs."""
    return _page(_GPUS, gpu_page.section(_ON_GPUS))


def _page(beginning: str, lines: Sequence[str]) -> str:
    text = "\n".join(lines) if lines else "\nNo results are stored yet."
    return f"{beginning.rstrip()}\n{text}".rstrip() + "\n"


def _collectives(machines: Sequence[Results]) -> list[str]:
    """Return tables by machine, because not all machines have equal peers."""
    lines: list[str] = []
    for machine in [one for one in machines if list(contests_of(one.of("network")))]:
        cases = [case for case in machine.of("network") if "op" in case[0]["case"]]
        cases = [case for case in cases if case[0]["case"]["bytes"] in _SIZES]
        peers, rows = peers_of(cases), []
        for case in cases:
            hosts, ranks = case[0]["case"]["hosts"], case[0]["case"]["ranks"]
            rows.append([f"{hosts} x {ranks // hosts}", what_of(case), *row_of(case, peers)])
        text = f"Hosts x ranks on each; network namespaces, {name_of(machine)}."
        headings = ["", "", *headings_of(peers)]
        if lines:
            lines += ["", text, "", *tables.markdown(headings, rows)]
        else:
            lines = section("Between hosts", text, headings, rows)
    return lines


def _many_hosts(machines: Sequence[Results]) -> list[str]:
    lines: list[str] = []
    for machine in machines:
        for check in [record for record in machine.many_hosts if record.get("part") == "check"]:
            rows = [
                [name, *(f"{check[key][one]:.3g}" for one in ("least", "median", "most", "rank 0"))]
                for key, name in _MANY_HOSTS.items()
            ]
            ranks = check["hosts"] * check["ranks"]
            text = (
                f"{ranks} ranks as {check['hosts']} simulated hosts of {check['ranks']}, {name_of(machine)}: what each"
            )
            text += " rank costs."
            lines += section("Many hosts", text, ["of a rank", "least", "median", "most", "rank 0"], rows)
        compared = [record for record in machine.many_hosts if record.get("part") == "compare"]
        if compared:
            text = "Allreduce by each algorithm, one rank on each simulated host, with no network in between. Here"
            text += "\nbold is what our own choice takes."
            headings = ["hosts", "size", *compared[0]["us"]]
            lines += ["", text, "", *tables.markdown(headings, [_algorithms(record) for record in compared])]
    return lines


def _algorithms(record: Record) -> list[str]:
    chosen = _chosen(record["hosts"], record["bytes"])
    cells = [f"**{time_text(us)}**" if name == chosen else time_text(us) for name, us in record["us"].items()]
    return [str(record["hosts"]), size_text(record["bytes"]), *cells]


def _chosen(hosts: int, size: int) -> str:
    """Return the algorithm that engine/agreement/algorithms.cc chooses."""
    if hosts <= 8 or (hosts <= 16 and 256 * _KB < size <= 4 * _MB):
        return "direct"
    return "doubling" if size <= 256 * _KB else "ring"
