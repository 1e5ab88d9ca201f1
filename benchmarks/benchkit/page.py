# SPDX-License-Identifier: Apache-2.0
"""docs/performance.md and its pictures, from stored results alone: nothing here measures anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchkit import plots, tables
from benchkit.ledger import Record, Results
from benchkit.svg import size_text
from benchkit.training import WORKLOADS

_INTRODUCTION = """\
# Performance

Made by `python benchmarks/report.py`; do not edit.

How to read it: everything in a row was measured in the same run on the same cores, in turn, round after round. `time`
is the median of our own times with its 95 % confidence interval. A column with the name of a peer tells **how many
times longer the peer takes** than we do, with its 95 % interval; where the peer is faster beyond chance, it is bold.
"Above the floor" is how many times longer we take than a bare C program that moves the same bytes and does nothing else
([benchmarks/floor](../benchmarks/floor)): no names, no agreement between the ranks, no Python. `default` works on
ordinary memory, `shared` on tensors in memory that the engine owns.

To reproduce it ([benchmarks](../benchmarks/README.md) tells how to get the peers; those that are missing are left out):

```
python benchmarks/report.py            # 20 to 25 minutes on a machine that does nothing else
python benchmarks/report.py --quick    # a look, with wide intervals
```
"""


def write_page(docs: Path, results: Sequence[Results]) -> list[Path]:
    """The files that were written."""
    docs.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, str] = {}
    sections = [_INTRODUCTION, *(_machine(one, pictures) for one in results)]
    paths = [docs / "performance.md", *(docs / name for name in pictures)]
    for path, text in zip(paths, ["\n".join(sections), *pictures.values()], strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def _machine(results: Results, pictures: dict[str, str]) -> str:
    """Everything about one kind of machine; its pictures are added to `pictures`."""
    lines = [*_about(results), "", "### At a glance", ""]
    lines += tables.verdicts([case for case in results.cases if case[0]["part"] != "idle"])

    def section(title: str, text: str, table: list[str]) -> None:
        lines.extend(["", f"### {title}", "", *([text, ""] if text else []), *table])

    def picture(name: str, alternative: str, drawn: str | None) -> None:
        if drawn is not None:
            pictures[f"performance-{results.kind}-{name}.svg"] = drawn
            lines.extend(["", f"![{alternative}](performance-{results.kind}-{name}.svg)"])

    for ranks in sorted({case[0]["case"]["ranks"] for case in results.of("collectives")}):
        _collectives(results, ranks, section)
        picture(f"collectives-{ranks}", f"time of the collectives by size on {ranks} ranks",
                plots.collectives(results, ranks))  # fmt: skip
    if results.of("small"):
        text = "Allreduces through the Python door, 2 ranks."
        section("Small messages", text, tables.comparison(results.of("small"), _message, p99=True))
    for case in results.of("idle"):
        section("Idle", "A rank that has worked and now does nothing.", tables.idle(case))
    if results.of("types"):
        text = "float16 and bfloat16; the column float32 is our bytes per second relative to those of float32."
        section("Half precision", text, tables.comparison(results.of("types"), _type))
    _network(results, section)
    if results.of("launch"):
        text = (
            "Two ranks, from the command line to the first result of the last one. The floor only imports the library."
        )
        section("Launch", text, tables.comparison(results.of("launch"), lambda case: str(case["program"])))
    _training(results, section)
    picture("training", "cost of a training step above independent processes", plots.training(results))
    if results.of("scaling"):
        text = "Allreduce, a core for each rank."
        section("Scaling over ranks", text, tables.comparison(results.of("scaling"), _scaled))
        picture("scaling", "time of an allreduce by ranks", plots.scaling(results))
    return "\n".join(lines) + "\n"


Section = Callable[[str, str, list[str]], None]


def _about(results: Results) -> list[str]:
    used = [results.runs[run] for run in sorted({case[0]["run"] for case in results.cases})]
    facts: Record = used[-1]["machine"] if used else {}
    named = (record["library"] for case in results.cases for record in case if case[0]["part"] != "training")
    libraries = dict.fromkeys(name for name in named if name)
    runs = ", ".join(f"{run['run']}{' (quick)' * run['quick']}, load {run['machine']['load_before']}" for run in used)
    return [
        f"## {facts.get('processor', results.kind)}, {facts.get('cores', '?')} cores",
        "",
        f"{facts.get('architecture')}, {facts.get('memory_gib')} GiB, Linux {facts.get('kernel')}, "
        f"Python {facts.get('python')}, NumPy {facts.get('numpy')}. {', '.join(libraries)}. Measured: {runs}.",
    ]


def _collectives(results: Results, ranks: int, section: Section) -> None:
    crowded = all(ranks > run["machine"]["cores"] for run in results.runs.values())
    for op in dict.fromkeys(case[0]["case"]["op"] for case in results.of("collectives", ranks=ranks)):
        text = "More ranks than cores." if crowded else ""
        section(f"{op} on {ranks} ranks", text, tables.comparison(results.of("collectives", ranks=ranks, op=op), _size))


def _network(results: Results, section: Section) -> None:
    measured = [case for case in results.of("network") if "median" in case[0]]
    if measured:
        text = "Allreduce of two ranks on two hosts (network namespaces). The floor is a bare full-duplex exchange."
        section("TCP", text, tables.comparison(measured, _size))
    elif results.of("network"):
        section("TCP", "Not measured: there are no network namespaces on this machine.", [])


def _training(results: Results, section: Section) -> None:
    for case in results.of("training"):
        facts = f"{case[0]['parameters']:,} parameters in {case[0]['tensors']} tensors, 2 ranks with one thread each."
        text = f"{facts} The bound is the same step in processes that do not know each other."
        table = [*tables.training_costs(case), "", *tables.comparison([case], lambda _: "step")]
        section(f"Training step: {WORKLOADS[case[0]['case']['workload']]}", text, table)


def _size(case: Record) -> str:
    return size_text(case["bytes"])


def _message(case: Record) -> str:
    many = f"{case['tensors']} at once of " if case["tensors"] > 1 else ""
    return many + size_text(case["bytes"])


def _type(case: Record) -> str:
    return f"{case['dtype']}, {case['reduce']}, {case['buffers']}, {size_text(case['bytes'])}"


def _scaled(case: Record) -> str:
    return f"{size_text(case['bytes'])}, {case['ranks']} ranks"
