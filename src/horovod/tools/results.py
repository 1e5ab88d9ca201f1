# SPDX-License-Identifier: Apache-2.0
"""Results of `hvd test`: data from the ranks, the result for the whole job, and its display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from horovod.tools import speed

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

PASS, FAIL, NOT_APPLICABLE = "pass", "fail", "not applicable"
_MARKS = {PASS: "[green]✓[/]", FAIL: "[bold red]✗[/]", NOT_APPLICABLE: "[dim]·[/]"}


@dataclass(frozen=True)
class Check:
    """Result of one collective on one dtype, which is empty if the collective has none."""

    operation: str
    dtype: str
    outcome: str
    text: str = ""


@dataclass(frozen=True)
class Report:
    """Results of one run of `hvd test`."""

    version: str
    ranks: int
    transport: str
    kernels: str
    seconds: float
    checks: list[Check]
    speeds: list[speed.Speed]
    hosts: dict[str, int] = field(default_factory=dict)  # ranks by host name

    @property
    def failures(self) -> list[Check]:
        return [check for check in self.checks if check.outcome == FAIL]

    @property
    def passed(self) -> bool:
        return not self.failures and any(check.outcome == PASS for check in self.checks)


def merge(by_rank: Sequence[Sequence[Check]]) -> list[Check]:
    """Return one check for each check of the ranks.

    It passes if it passes on all; its text names the first failing rank.
    """
    merged = []
    for checks in zip(*by_rank, strict=True):
        worst = next(((rank, check) for rank, check in enumerate(checks) if check.outcome == FAIL), None)
        if worst is None:
            merged.append(checks[0])
        else:
            rank, check = worst
            merged.append(Check(check.operation, check.dtype, FAIL, f"rank {rank}: {check.text}"))
    return merged


def as_json(report: Report) -> dict[str, Any]:
    return {
        "khorovod": report.version,
        "passed": report.passed,
        "ranks": report.ranks,
        "hosts": report.hosts,
        "transport": report.transport,
        "kernels": report.kernels,
        "seconds": round(report.seconds, 3),
        "checks": [asdict(check) for check in report.checks],
        "allreduce": [
            {"bytes": one.size, "seconds": one.seconds, "bytes_per_second": one.bandwidth} for one in report.speeds
        ],
    }


def as_page(report: Report) -> list[RenderableType]:
    """Return the report as a page for a terminal of 100 columns."""
    from rich.markup import escape

    head = f"[bold]Khorovod {report.version}[/]: {report.ranks} ranks over {report.transport}, {report.kernels} kernels"
    if len(report.hosts) > 1:
        head += escape("\non " + ", ".join(f"{name} ({ranks})" for name, ranks in report.hosts.items()))
    alone = "  ".join(f"{check.operation} {_MARKS[check.outcome]}" for check in report.checks if not check.dtype)
    page: list[RenderableType] = [head, "", _table_of_checks(report.checks), f" {alone}"]
    page += [f"[yellow]  · {note}[/]" for note in _notes(report.checks)]
    page += ["", _table_of_speeds(report.speeds), "", _verdict(report)]
    return page


def _table_of_checks(checks: Sequence[Check]) -> Table:
    from rich.table import Table

    typed = [check for check in checks if check.dtype]
    operations = list(dict.fromkeys(check.operation for check in typed))
    table = Table(box=None, pad_edge=False, padding=(0, 0, 0, 1), header_style="bold")
    table.add_column("dtype")
    for operation in operations:
        table.add_column(_SHORT.get(operation, operation), justify="center")
    for dtype in dict.fromkeys(check.dtype for check in typed):
        marks = {check.operation: _MARKS[check.outcome] for check in typed if check.dtype == dtype}
        table.add_row(dtype, *(marks.get(operation, "") for operation in operations))
    return table


_SHORT = {"allgather": "gather", "broadcast": "bcast", "reducescatter": "redscat", "product": "prod"}


def _notes(checks: Sequence[Check]) -> list[str]:
    missing = [check.dtype for check in checks if check.outcome == NOT_APPLICABLE and "installed" in check.text]
    names = ", ".join(dict.fromkeys(missing))
    return [f"not tested, because the package ml_dtypes is not installed: {names}"] if names else []


def _table_of_speeds(speeds: Sequence[speed.Speed]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("allreduce, float32", "time", "bandwidth"):
        table.add_column(title, justify="right")
    for one in speeds:
        table.add_row(speed.size_text(one.size), speed.time_text(one.seconds), speed.bandwidth_text(one.bandwidth))
    return table


def _verdict(report: Report) -> str:
    from rich.markup import escape

    done = sum(check.outcome == PASS for check in report.checks)
    if report.passed:
        return f"[bold green]passed[/]: {done} checks in {report.seconds:.1f} s"
    lines = [f"[bold red]failed[/]: {len(report.failures)} of {done + len(report.failures)} checks"]
    for check in report.failures[:10]:
        lines.append(escape(f"  {check.operation} {check.dtype}: {' '.join(check.text.split())[:300]}"))
    if len(report.failures) > 10:
        lines.append(f"  and {len(report.failures) - 10} more (--json lists them all)")
    return "\n".join(lines)
