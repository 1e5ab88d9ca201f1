# SPDX-License-Identifier: Apache-2.0
"""`hvd doctor`: what works on this machine, how fast the transports are, and what to change."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from horovod.common.joining.interfaces import LOOPBACK, LoopbackError, check_loopback
from horovod.launcher.options import JobOptions
from horovod.machine import checks, gpus
from horovod.machine.findings import Finding, Section
from horovod.tools import gpu_trial, packages, speed, trial

if TYPE_CHECKING:
    from rich.console import RenderableType

_TRANSPORTS = {"shm": "shared memory", "tcp": "TCP"}
_LIMIT_S = 20.0
_OF_TRANSPORT = {
    "shm": "see memfd_create and /dev/shm above; ranks of one host use TCP instead",
    "tcp": "check that no firewall filters the loopback interface (HOROVOD_GLOO_IFACE names another)",
}

_SEE_ALL = "two ranks cannot run here at all: hvd test shows the whole error"


@dataclass(frozen=True)
class Transport:
    """Result of a short run of two ranks. `reason` says why it does not work."""

    name: str
    works: bool
    latency_s: float | None = None
    bandwidth: float | None = None  # bytes per second
    kernels: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Examination:
    """Results of all checks of this machine."""

    sections: list[Section]
    transports: list[Transport]

    @property
    def works(self) -> bool:
        """Return True if two ranks could use every transport."""
        return all(transport.works for transport in self.transports)

    @property
    def advice(self) -> list[str]:
        return [f"{one.name}: {one.advice}" for _, findings in self.sections for one in findings if one.advice]


def examine(limit_s: float = _LIMIT_S) -> Examination:
    """Examine this machine. This takes two or three seconds, because two ranks are started over each transport."""
    transports, in_short = _try_transports(limit_s)
    sections: list[Section] = [
        ("Versions", packages.versions()),
        ("Frameworks", packages.frameworks()),
        ("Processor, memory", [*checks.processor(), gpus.finding()]),
        ("Limits", checks.limits()),
        ("Shared memory", checks.shared_memory()),
        ("Kernel", checks.kernel()),
        ("MPI", [packages.mpi()]),
        ("Allreduce, 2 ranks", in_short),
    ]
    if on_gpus := gpu_trial.findings(limit_s):
        sections.append(("CUDA", on_gpus))
    return Examination(sections, transports)


def _try_transports(limit_s: float) -> tuple[list[Transport], list[Finding]]:
    """Try each transport, unless the ranks could not even connect over the loopback interface."""
    try:
        check_loopback()
    except LoopbackError as error:
        untried = [Transport(name, False, reason=str(error)) for name in _TRANSPORTS.values()]
        return untried, [Finding(LOOPBACK, f"does not work: {error}", error.remedy)]
    tried = [try_transport(kind, limit_s) for kind in _TRANSPORTS]
    return tried, [*_transport_findings(tried), _kernels(tried)]


def try_transport(kind: str, limit_s: float) -> Transport:
    """Start two ranks and measure allreduce between them. Never raises."""
    name = _TRANSPORTS[kind]
    try:
        here = JobOptions(hosts="localhost:2")  # ignores hosts that a batch system has set aside
        done = trial.run(_measure, ranks=2, transport=kind, limit_s=limit_s, where=here)
    except (trial.TrialFailed, ValueError, OSError) as error:
        return Transport(name, False, reason=str(error))
    if done.transport != name:
        return Transport(name, False, reason=f"the ranks fell back to {done.transport}")
    small, large = speed.slowest(done.results, speed.SHORT)
    kernels = str(done.engine.get("kernels", "unknown"))
    return Transport(name, True, small.seconds, large.bandwidth, kernels)


def _measure() -> list[float]:
    return speed.measure(speed.SHORT)


def _transport_findings(transports: list[Transport]) -> list[Finding]:
    another_works = any(transport.works for transport in transports)
    return [_transport_finding(kind, one, another_works) for kind, one in zip(_TRANSPORTS, transports, strict=True)]


def _transport_finding(kind: str, found: Transport, another_works: bool) -> Finding:
    if found.latency_s is None or found.bandwidth is None:
        # Show advice about the transport only if another transport works; otherwise the cause is not specific to it.
        advice = trial.advice_on(found.reason) or (_OF_TRANSPORT[kind] if another_works else _SEE_ALL)
        return Finding(found.name, "does not work: " + _last_line(found.reason), advice)
    size = speed.size_text(speed.SHORT[-1][0])
    latency, bandwidth = speed.time_text(found.latency_s), speed.bandwidth_text(found.bandwidth)
    return Finding(found.name, f"works: {latency} for 8 B, {bandwidth} for {size}")


def _kernels(transports: list[Transport]) -> Finding:
    return Finding("reduction kernels", next((one.kernels for one in transports if one.works), "unknown"))


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1].strip()[:300]


def as_json(found: Examination) -> dict[str, Any]:
    return {
        "sections": {title: [asdict(one) for one in findings] for title, findings in found.sections},
        "transports": [asdict(transport) for transport in found.transports],
        "advice": found.advice,
    }


def as_page(found: Examination) -> list[RenderableType]:
    """Return the results as a page for a terminal of 100 columns."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for title, findings in found.sections:
        for index, one in enumerate(findings):
            mark = "[yellow]![/] " if one.advice else ""
            table.add_row("" if index else title, one.name, mark + escape(one.value))
    page: list[RenderableType] = [table, ""]
    if not found.advice:
        return [*page, "[bold green]Nothing to change.[/]"]
    return [*page, "[bold yellow]What to change[/]", *(f"  - {escape(line)}" for line in found.advice)]
