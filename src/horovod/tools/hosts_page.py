# SPDX-License-Identifier: Apache-2.0
"""Display of `hvd doctor -H`: tables for people, a document for programs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from horovod.launcher.remote.advice import TO_SEE_IT
from horovod.launcher.remote.measuring import Way
from horovod.launcher.remote.surveying import Offset, Surveyed, is_same_version
from horovod.machine import gpus
from horovod.tools import speed
from horovod.tools.several_hosts import HostsExamination

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_MOST_COLUMNS = 4  # columns of a table of all connections that fit a terminal of 100 columns


def as_json(found: HostsExamination) -> dict[str, Any]:
    return {
        "hosts": [_host_document(name, found.slots[name], host) for name, host in found.survey.hosts.items()],
        "ways": [
            {
                "from": start,
                "to": end,
                "round_trip_s": way.round_trip_s,
                "bytes_per_second": way.bandwidth,
                "problem": way.problem,
            }
            for (start, end), way in found.survey.ways.items()
        ],
        "advice": found.advice,
    }


def _host_document(name: str, slots: int, host: Surveyed) -> dict[str, Any]:
    choice, offset = host.choice, host.offset
    return {
        "host": name,
        "slots": slots,
        "answers": host.silence is None,
        "problem": "\n".join([host.silence.reason, *host.silence.complaints]) if host.silence else "",
        "khorovod": host.facts.get("version"),
        "python": host.facts.get("python"),
        "hostname": host.facts.get("hostname"),
        "address": choice.address.text if choice else None,
        "interface": choice.address.interface if choice else None,
        "reason": choice.reason if choice else None,
        "addresses": host.facts.get("addresses", []),
        "cores": host.facts.get("cores"),
        "gpus": list(host.examination.get("gpus", [])),
        "clock_offset_s": offset.seconds if offset else None,
        "clock_error_s": offset.error if offset else None,
        "findings": [
            {"name": what, "value": value, "advice": advice}
            for what, value, advice in host.examination.get("findings", [])
        ],
    }


def as_page(found: HostsExamination) -> list[RenderableType]:
    """Return the results as a page for a terminal of 100 columns."""
    from rich.markup import escape

    page: list[RenderableType] = [_table_of_hosts(found), ""]
    for name, host in found.survey.hosts.items():
        if host.silence is not None:
            page.append(f"[bold red]{escape(name)}[/]: {escape(host.silence.reason)}")
            page += [f"    {escape(line)}" for line in host.silence.complaints]
            page.append("")
    ways = found.survey.ways
    if ways:
        names = list(dict.fromkeys(start for start, _ in ways))
        page += [_table_of_ways(names, ways) if len(names) <= _MOST_COLUMNS else _summary_of_ways(names, ways), ""]
    advice = found.advice
    if not advice:
        return [*page, "[bold green]Nothing to change.[/]"]
    return [*page, "[bold yellow]What to change[/]", *map(_advice_line, advice)]


def _advice_line(line: str) -> RenderableType:
    """Return a line of advice. A command in it is not wrapped, because a wrapped copy would not run."""
    from rich.console import Group
    from rich.text import Text

    whole = TO_SEE_IT in line
    text = Text(f"  - {line}", no_wrap=whole, overflow="ignore" if whole else "fold")
    return Group(text)  # a Text printed alone would lose its wrapping options


def _table_of_hosts(found: HostsExamination) -> Table:
    table = _table("host", "khorovod", "Python", "cores", "GPUs", "clock", "address", "because")
    for name, host in found.survey.hosts.items():
        facts = host.facts
        known = [str(facts.get(key, "")) for key in ("version", "python", "cores")]
        names = host.examination.get("gpus")
        table.add_row(
            _text(name), *map(_text, known), _text("" if names is None else gpus.summary(names)),
            _clock(host.offset), *_address(host),
        )  # fmt: skip
    return table


def _address(host: Surveyed) -> tuple[str, str]:
    if host.silence is not None:
        return "[bold red]none[/]", "it does not answer"
    if host.choice is None:
        return "[bold red]none[/]", "another version" if not is_same_version(host.facts) else "not all hosts reach it"
    address = host.choice.address
    return _text(f"{address.text} ({address.interface})"), _text(host.choice.reason)


def _clock(offset: Offset | None) -> str:
    if offset is None:
        return ""
    if abs(offset.seconds) <= offset.error:
        return "same"
    return f"{offset.seconds:+.3g} s" if abs(offset.seconds) >= 1 else f"{offset.seconds * 1e3:+.3g} ms"


def _table_of_ways(names: Sequence[str], ways: Mapping[tuple[str, str], Way]) -> Table:
    table = _table("round trip, bandwidth", *(f"to {name}" for name in names))
    for start in names:
        cells = [_way_text(ways[start, end]) if start != end else "[dim]·[/]" for end in names]
        table.add_row(f"from {_text(start)}", *cells)
    return table


def _way_text(way: Way) -> str:
    if way.round_trip_s is None or way.bandwidth is None:
        return "[bold red]fails[/]"
    return f"{speed.time_text(way.round_trip_s)}, {speed.bandwidth_text(way.bandwidth)}"


def _summary_of_ways(names: Sequence[str], ways: Mapping[tuple[str, str], Way]) -> Table:
    """Return a table with the median and the worst value of each host, for more hosts than fit in columns."""
    table = _table("from", "round trip", "longest", "bandwidth", "smallest", "fail")
    for start in names:
        own = {end: way for (one, end), way in ways.items() if one == start}
        times = {end: way.round_trip_s for end, way in own.items() if way.round_trip_s is not None}
        rates = {end: way.bandwidth for end, way in own.items() if way.bandwidth is not None}
        cells = ["", "", "", ""]
        if times:
            worst = max(times, key=lambda end: times[end])
            cells[:2] = [
                speed.time_text(statistics.median(times.values())),
                f"{speed.time_text(times[worst])} to {worst}",
            ]
        if rates:
            worst = min(rates, key=lambda end: rates[end])
            cells[2:] = [
                speed.bandwidth_text(statistics.median(rates.values())),
                f"{speed.bandwidth_text(rates[worst])} to {worst}",
            ]
        failed = [end for end, way in own.items() if way.problem]
        table.add_row(_text(start), *map(_text, cells), _text(", ".join(failed)))
    return table


def _table(*titles: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in titles:
        table.add_column(_text(title), overflow="fold")
    return table


def _text(value: str) -> str:
    from rich.markup import escape

    return escape(value)
