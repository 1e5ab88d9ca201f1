# SPDX-License-Identifier: Apache-2.0
"""Full tables, pages and their pictures, made only from stored results: this module measures nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from benchkit import plots, tables
from benchkit.hosts_page import gpus_page, hosts_page
from benchkit.ledger import Record, Results
from benchkit.overview import overview
from benchkit.training import WORKLOADS
from benchkit.units import size_text

_INTRODUCTION = """\
# Performance: the full tables

Made by `python benchmarks/report.py`. docs/performance.md has the outcome on one page.

How to read it: everything in a row was measured in the same run on the same cores, in turn, round after round. `time`
is the median of our own times with its 95 % confidence interval. A column with the name of a peer says **how many
times as long the peer takes**, with its 95 % interval; where the peer is faster beyond chance, it is bold.
"Above the floor" is how many times as long we take as a bare C program that moves the same bytes and does nothing else
(benchmarks/floor): no names, no agreement between the ranks, no Python. `default` works on
ordinary memory, `shared` on tensors in memory that the engine owns; `address` is the engine alone, called with raw
addresses and so without most of the Python API.

To reproduce it (benchmarks/README.md says how to get the peers; missing ones are left out):

```
python benchmarks/report.py            # about 40 minutes on a machine that does nothing else
python benchmarks/report.py --quick    # a look, with wide intervals
```
"""


class Writer:
    """Section about one kind of machine in progress, and the pictures that it shows, by file name."""

    def __init__(self, kind: str) -> None:
        self.lines: list[str] = []
        self.pictures: dict[str, str] = {}
        self._kind = kind

    def section(self, title: str, text: str, table: Sequence[str] = (), level: int = 3) -> None:
        self.lines += ["", f"{'#' * level} {title}", *(["", text] if text else []), "", *table]

    def picture(self, name: str, alternative: str, drawn: str | None) -> None:
        if drawn is not None:
            file = f"performance-{self._kind}-{name}.svg"
            self.pictures[file] = drawn
            self.lines += ["", f"![{alternative}]({file})", ""]


def write_page(docs: Path, results: Sequence[Results], folder: Path) -> list[Path]:
    """Write the pages with their pictures into `docs`, and the full tables with theirs into `folder`.

    Returns:
        The files: the overview, the full tables, between hosts, on GPUs, then the pictures of the full tables.
    """
    full = _INTRODUCTION if results else _INTRODUCTION + "\nNo results are stored yet.\n"
    pictures: dict[str, str] = {}
    for machine in results:
        writer = Writer(machine.kind)
        for part in (_about, _collectives, _small, _types, _network, _launch, _training, _scaling):
            part(writer, machine)
        text = re.sub(r"\n{3,}", "\n\n", "\n".join(writer.lines)).rstrip()
        full += text + "\n"
        pictures |= writer.pictures
    page = overview(results, pictures)
    files = {docs / "performance.md": page, folder / "performance-tables.md": full}
    files |= {docs / "performance-hosts.md": hosts_page(results), docs / "performance-gpus.md": gpus_page()}
    files |= {folder / name: text for name, text in pictures.items()}
    files |= {docs / name: text for name, text in pictures.items() if f"]({name})" in page}
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(files)


def _about(writer: Writer, results: Results) -> None:
    used = [results.runs[run] for run in sorted({case[0]["run"] for case in results.cases})]
    if not used:
        return
    facts: Record = used[-1]["machine"]
    named = (record["library"] for case in results.cases for record in case if case[0]["part"] != "training")
    libraries = ", ".join(dict.fromkeys(name for name in named if name))
    runs = ", ".join(f"{run['run']}{' (quick)' * run['quick']}, load {run['machine']['load_before']}" for run in used)
    text = f"{facts['architecture']}, {facts['memory_gib']} GiB, Linux {facts['kernel']}, Python {facts['python']}, "
    text += f"NumPy {facts['numpy']}. {libraries}.\nMeasured: {runs}."
    writer.section(f"{facts['processor']}, {facts['cores']} cores", text, level=2)
    writer.section("At a glance", "", tables.verdicts([case for case in results.cases if case[0]["part"] != "idle"]))


def _collectives(writer: Writer, results: Results) -> None:
    cores = max((run["machine"]["cores"] for run in results.runs.values()), default=0)
    for ranks in sorted({case[0]["case"]["ranks"] for case in results.of("collectives")}):
        writer.section(f"Collectives on {ranks} ranks", "More ranks than cores." if ranks > cores else "")
        drawn = plots.collectives(results, ranks)
        writer.picture(f"collectives-{ranks}", f"time of the collectives by size on {ranks} ranks", drawn)
        for op in dict.fromkeys(case[0]["case"]["op"] for case in results.of("collectives", ranks=ranks)):
            table = tables.comparison(results.of("collectives", ranks=ranks, op=op), _size)
            writer.section(f"{op} on {ranks} ranks", "", table, level=4)


def _small(writer: Writer, results: Results) -> None:
    if cases := results.of("small"):
        text = "Allreduces through the Python API, 2 ranks."
        table = [*tables.comparison(cases, _message), "", *tables.percentiles(cases, _message)]
        writer.section("Small messages", text, table)
    for case in results.of("idle"):
        writer.section("Idle", "A rank that has worked and now does nothing.", tables.idle(case))


def _types(writer: Writer, results: Results) -> None:
    if cases := results.of("types"):
        text = "Allreduce. The column float32 is our bytes per second relative to those of our own float32."
        writer.section("Half precision", text, tables.comparison(cases, _type))


def _network(writer: Writer, results: Results) -> None:
    measured = [case for case in results.of("network") if "median" in case[0]]
    if not measured and results.of("network"):
        writer.section("Between hosts", "Not measured: there are no network namespaces on this machine.")
    for hosts, ranks in sorted({(case[0]["case"]["hosts"], case[0]["case"]["ranks"]) for case in measured}):
        found = [case for case in measured if case[0]["case"]["ranks"] == ranks]
        text = "Network namespaces, joined by TCP. The floor is a bare full-duplex exchange of one rank on each host."
        if ranks > hosts:
            text += "\n`flat` and `hierarchical` are our own engine, told not to choose."
        writer.section(f"Between {hosts} hosts, {ranks // hosts} on each", text, tables.our_choice(found, _collective))
    _network_training(writer, results)
    if cases := results.of("network links"):
        text = "Allreduce of two ranks on two hosts over one stream, and how many times as long it takes over 4."
        text += "\nEverything but `plain` goes through a program that delays each packet that long, each way."
        writer.section("Slow links", text, tables.our_choice(cases, _linked))


def _network_training(writer: Writer, results: Results) -> None:
    for case in results.of("network training"):
        about = case[0]["case"]
        text = f"{about['hosts']} hosts with {about['ranks'] // about['hosts']} on each, one thread for each rank."
        text += "\nThe bound is the same step in processes that do not know each other."
        title = f"Training step between {about['hosts']} hosts, {about['ranks']} ranks: {WORKLOADS[about['workload']]}"
        writer.section(title, text, [*tables.training_costs(case), "", *tables.comparison([case], lambda _: "step")])


def _launch(writer: Writer, results: Results) -> None:
    if cases := results.of("launch"):
        text = "Two ranks, from the command line to the first result of the last one. The floor is Python that imports"
        text += "\nNumPy or torch, with no launcher and no collective."
        writer.section("Launch", text, tables.comparison(cases, lambda case: str(case["program"])))


def _training(writer: Writer, results: Results) -> None:
    for case in results.of("training"):
        facts = f"{case[0]['parameters']:,} parameters in {case[0]['tensors']} tensors, 2 ranks with one thread each."
        text = f"{facts}\nThe bound is the same step in processes that do not know each other."
        table = [*tables.training_costs(case), "", *tables.comparison([case], lambda _: "step")]
        writer.section(f"Training step: {WORKLOADS[case[0]['case']['workload']]}", text, table)
    writer.picture("training", "cost of a training step above independent processes", plots.training(results))


def _scaling(writer: Writer, results: Results) -> None:
    cases = sorted(results.of("scaling"), key=lambda case: (case[0]["case"]["ranks"], case[0]["case"]["bytes"]))
    if cases:
        writer.section("Scaling over ranks", "Allreduce.", tables.comparison(cases, _scaled))
        writer.picture("scaling", "time of an allreduce by ranks", plots.scaling(results))


def _size(case: Record) -> str:
    return size_text(case["bytes"])


def _collective(case: Record) -> str:
    return f"{case['op']}, {size_text(case['bytes'])}"


def _linked(case: Record) -> str:
    return f"{case['link']}, {size_text(case['bytes'])}"


def _message(case: Record) -> str:
    many = f"{case['tensors']} at once of " if case["tensors"] > 1 else ""
    return many + size_text(case["bytes"])


def _type(case: Record) -> str:
    return f"{case['dtype']}, {case['reduce']}, {case['buffers']}, {size_text(case['bytes'])}"


def _scaled(case: Record) -> str:
    return f"{size_text(case['bytes'])}, {case['ranks']} ranks"
