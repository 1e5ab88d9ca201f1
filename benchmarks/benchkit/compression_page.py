# SPDX-License-Identifier: Apache-2.0
"""The measured parts of docs/compression.md, made from the stored records, and equal tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill

from testkit.places import ROOT

from benchkit.compression_results import FOLDER, Record, about, links, of_part, read
from benchkit.compression_ways import BOUND, BY_NAME, DENSE, ONE_HOST_LIMIT, OURS, TARGETS
from benchkit.crossover import Exchange, bandwidth_text, fastest, pays_below
from benchkit.marked import replaced
from benchkit.pairs import LEAST_PAIRS
from benchkit.report import NO_PICTURE
from benchkit.tables import markdown
from benchkit.units import time_text

PAGE = ROOT / "docs" / "compression.md"
# Names of marked parts of the page, and the scripts that measure them.
SLOW_LINKS = "slow links", "benchmarks/compression.py"
CODECS = "codecs", "benchmarks/codecs.py"
_WIDTH = 120  # characters in lines of text
_MODEL_LINK = "1 Gbit/s"  # the model's fixed time is computed from measurements at this link
_COMPARED = (1e7, 1e8, 1e9, 2.5e9, 1e10, 2.5e10)  # bits per second

_LAYOUT = """\
{hosts} hosts with {ranks} ranks each behind links of {links}, made of network namespaces and token buckets. A plain TCP
stream gets {tcp} Mbit/s there. The model has {layers} layers of {width:,} x {width:,}: {gradients:.0f} MB of gradients.
A step without exchange takes {alone}. `above` is what a step takes beyond that: the median of {rounds} rounds in which
all ways took turns, with {interval}. Processor time is that of the rank that needs most of it. The last column is
measured at the network interface of a host, with all headers. {machine}."""
_BUSY = """\
Other programs kept the processors busy meanwhile, so that whatever needs a processor took several times as long as on a
machine of its own. Methods that send little look worse than they are, and so do the bandwidths below which they pay.
Bytes, processor time, and what the wire takes do not depend on that."""
_ONE_HOST = """\
On one host, where ours send nothing over a network, {ranks} ranks with a core each:"""
_CROSSOVER = """\
From these figures follows the bandwidth at which a method pays. An exchange takes a fixed time (codecs, copies,
messages) and the time of its bytes. The fixed time is what it took at {link} beyond the time of its bytes. With more
cores for each rank it is shorter, and a method pays at higher bandwidths than here, where {cores} cores serve {ranks}
ranks."""
_FASTEST = "By this model the fastest exchange at {bandwidths}."
_CODECS = """\
Time of the codecs on one core for {megabytes:g} MB of float32 ({values:,} values), beside a copy of the same array in
the same round: medians, with quartiles. {machine}."""


def renew() -> list[str]:
    """Write the page's parts and plots from the stored records. Return the names of the files."""
    text = PAGE.read_text(encoding="utf-8")
    for (name, script), part in sections([(path.stem, read(path)) for path in sorted(FOLDER.glob("*.jsonl"))]).items():
        text = replaced(text, name, script, part)
    PAGE.write_text(text, encoding="utf-8")
    if find_spec("matplotlib") is None:
        return [str(PAGE), NO_PICTURE]
    return [
        str(PAGE),
        *(str(plot) for path in sorted(FOLDER.glob("*.jsonl")) for plot in save_plots(PAGE.parent, path)),
    ]


def sections(files: Sequence[tuple[str, Sequence[Record]]]) -> dict[tuple[str, str], str]:
    """Return the text of each marked part; `files`: the kinds of machines, and their records."""
    parts: dict[tuple[str, str], list[str]] = {SLOW_LINKS: [], CODECS: []}
    for kind, records in files:
        parts[SLOW_LINKS] += slow_links(kind, records)
        parts[CODECS] += codecs(records)
    return {marks: "\n".join(lines).strip("\n") for marks, lines in parts.items()}


def slow_links(kind: str, records: Sequence[Record]) -> list[str]:
    """Return the results between hosts and on one host, and the model made from them."""
    facts, found = about(records, "slow links"), links(records)
    if facts is None:
        return []
    busy = ["", _wrapped(_BUSY)] if facts["machine"]["load_before"] > facts["machine"]["cores"] else []
    lines = [
        "",
        _wrapped(_layout(facts, records, found)),
        *busy,
        *(["", _wrapped(facts["note"])] if "note" in facts else []),  # remarks about a run, added by hand
        "",
        f"![what the exchange adds to a step, by way]({plot_name(kind, 0)})",
    ]
    for name in found:
        lines += ["", f"At {name}:", "", *link_table(records, name)]
    if about(records, "one host") is not None:
        ranks = of_part(records, "one host")[0]["ranks"]
        lines += ["", _wrapped(_ONE_HOST.format(ranks=ranks)), "", *one_host_table(records)]
    if _MODEL_LINK in found:
        cores = facts["machine"]["cores"]
        lines += ["", _wrapped(_CROSSOVER.format(link=_MODEL_LINK, cores=cores, ranks=facts["ranks"])), ""]
        lines += [*crossover_table(records), "", _wrapped(best_at(exchanges(records))), ""]
        lines += [f"![what the exchange takes by bandwidth]({plot_name(kind, 1)})"]
    return lines


def _layout(facts: Record, records: Sequence[Record], found: dict[str, Record]) -> str:
    alone = [record["step_s"] for record in of_part(records, "slow links") if record["way"] == BOUND.name]
    return _LAYOUT.format(
        hosts=facts["hosts"],
        ranks=facts["ranks"] // facts["hosts"],
        links=" and ".join(found),
        tcp=" and ".join(f"{min(link['tcp_bits_per_s']) / 1e6:.0f}" for link in found.values()),
        layers=facts["layers"],
        width=facts["width"],
        gradients=4e-6 * facts["layers"] * facts["width"] * (facts["width"] + 1),
        alone=" and ".join(time_text(1e6 * seconds) for seconds in sorted(alone)),
        rounds=facts["rounds"],
        interval="its 95 % interval" if facts["rounds"] >= LEAST_PAIRS else "the least and the most of any round",
        machine=machine_text(facts),
    )


def _wrapped(text: str) -> str:
    return fill(" ".join(text.split()), _WIDTH, break_long_words=False, break_on_hyphens=False)


def machine_text(facts: Record) -> str:
    """Return the machine, its load and the date of a run."""
    it = facts["machine"]
    return f"{it['processor']}, {it['cores']} cores, load before {it['load_before']}, {it['time'][:10]}"


def link_table(records: Sequence[Record], link: str) -> list[str]:
    """Return a row for each way: its step, the part above a step without exchange, and its bytes."""
    rows = []
    found = of_part(records, "slow links", link=link)
    dense = above(found, DENSE.name)
    for record in found:
        megabytes = f"{record['host_bytes'] / 1e6:.2f}"
        cells = [record["way"], time_text(1e6 * record["step_s"]), "", "", time_text(1e6 * record["cpu_s"]), "0"]
        if "above_s" in record:
            cost = {name: time_text(1e6 * max(0.0, it)) for name, it in record["above_s"].items()}
            cells[2:4] = [f"{cost['value']} ({cost['low']} to {cost['high']})", times(dense, record)]
            cells[5] = megabytes
        rows.append(cells)
    return markdown(["way", "step", "above", "dense takes x longer", "processor time", "MB that a host sends"], rows)


def one_host_table(records: Sequence[Record]) -> list[str]:
    """Return a row for each way on one host, compared with the dense step."""
    found = of_part(records, "one host")
    dense = next((record["step_s"] for record in found if record["way"] == DENSE.name), None)
    rows = []
    for record in found:
        more = f"{100 * (record['step_s'] / dense - 1):+.1f} %" if dense and record["way"] != BOUND.name else ""
        rows.append([record["way"], time_text(1e6 * record["step_s"]), more, time_text(1e6 * record["cpu_s"])])
    return markdown(["way", "step", "beside dense", "processor time"], rows)


def above(found: Sequence[Record], way: str) -> float | None:
    """Return the seconds of a way above the step without exchange, or None if it was not measured."""
    return next((record["above_s"]["value"] for record in found if record["way"] == way), None)


def times(dense: float | None, record: Record) -> str:
    """Return how many times as long the dense exchange takes."""
    value = record["above_s"]["value"]
    return (
        "" if dense is None or value <= 0 else f"{dense / value:.2f}" if dense < 10 * value else f"{dense / value:.0f}"
    )


def exchanges(records: Sequence[Record]) -> list[Exchange]:
    """Return the model of each of Khorovod's ways, made from the measurements at _MODEL_LINK."""
    bits_per_s = links(records)[_MODEL_LINK]["bits_per_s"]
    return [
        Exchange.measured(record["way"], record["host_bytes"], record["above_s"]["value"], bits_per_s)
        for record in of_part(records, "slow links", link=_MODEL_LINK)
        if BY_NAME[record["way"]].library == OURS
    ]


def crossover_table(records: Sequence[Record]) -> list[str]:
    """Return a row for each method: fixed time, check of the model at another link, and the bandwidth where it pays."""
    models = exchanges(records)
    dense = next((model for model in models if model.name == DENSE.name), None)
    other = next((link for name, link in links(records).items() if name != _MODEL_LINK), None)
    rows = []
    for model in models:
        cells = [model.name, time_text(1e6 * model.fixed_s), ""]
        if other is not None:
            seconds = above(of_part(records, "slow links", link=other["link"]), model.name)
            check = "" if seconds is None else f", measured {time_text(1e6 * seconds)}"
            cells[2] = time_text(1e6 * model.seconds(other["bits_per_s"])) + check
        pays = "" if dense is None or model is dense else bandwidth_text(pays_below(model, dense))
        rows.append([*cells, pays])
    check = f"model at {other['link']}" if other is not None else "model"
    return markdown(["way", "fixed time", check, "faster than dense below"], rows)


def best_at(models: Sequence[Exchange]) -> str:
    """Return a sentence that names the fastest exchange at some bandwidths."""
    found = [f"{bandwidth_text(bits)} is `{fastest(models, bits).name.partition(', ')[2]}`" for bits in _COMPARED]
    return _FASTEST.format(bandwidths=", at ".join(found))


def codecs(records: Sequence[Record]) -> list[str]:
    """Return the table of the codecs' times compared with a copy."""
    facts = about(records, "codecs")
    if facts is None:
        return []
    rows = [
        [it["way"], f"{it['ms']:.1f} ms", f"{it['ratio']:.2f}", f"{it['low']:.2f} to {it['high']:.2f}"]
        for it in of_part(records, "codecs")
    ]
    values = facts["values"]
    text = _CODECS.format(megabytes=values * 4e-6, values=values, machine=machine_text(facts))
    return ["", _wrapped(text), "", *markdown(["", "time", "of a copy", "quartiles"], rows)]


def verdicts(records: Sequence[Record]) -> Iterator[str]:
    """Yield one line for each target and peer: the result, and whether it is sufficient."""
    for link in links(records):
        found = of_part(records, "slow links", link=link)
        dense = above(found, DENSE.name)
        for record in found:
            way, value = BY_NAME[record["way"]], record.get("above_s", {}).get("value", 0.0)
            target = TARGETS.get(link, {}).get(way.name)
            if dense and value > 0 and target:
                gain = dense / value
                yield f"{link}: {way.name} {gain:.2f} x shorter, target {target}: {met(gain > target)}"
            if value > 0 and (ours := above(found, way.of_us)) is not None:
                yield f"{link}: {way.name} takes {value / ours:.2f} x as long as {way.of_us}: {met(value > ours)}"
    one_host = {record["way"]: record["step_s"] for record in of_part(records, "one host")}
    for name, seconds in one_host.items():
        if DENSE.name in one_host and name not in (BOUND.name, DENSE.name):
            ratio = seconds / one_host[DENSE.name]
            yield f"one host: {name} {ratio:.3f} of dense, at most {ONE_HOST_LIMIT}: {met(ratio <= ONE_HOST_LIMIT)}"


def met(is_met: bool) -> str:
    """Return the word for a target that is met or missed."""
    return "met" if is_met else "MISSED"


def report(records: Sequence[Record]) -> list[str]:
    """Return all tables and verdicts as text for the terminal."""
    lines = []
    for link in links(records):
        lines += ["", f"At {link}:", *link_table(records, link)]
    if about(records, "one host") is not None:
        lines += ["", "On one host:", *one_host_table(records)]
    if _MODEL_LINK in links(records) and exchanges(records):
        lines += ["", *crossover_table(records), best_at(exchanges(records))]
    return [*lines, "", *verdicts(records)]


def plot_name(kind: str, number: int) -> str:
    """Return the file name of a plot: 0 shows what the exchange adds to a step, 1 its time by bandwidth."""
    return f"compression-{kind}-{('links', 'bandwidth')[number]}.svg"


def save_plots(folder: Path, path: Path) -> list[Path]:
    """Draw the plots of one machine's records, which requires matplotlib; return their files."""
    from benchkit import compression_plots

    records = read(path)
    facts = about(records, "slow links")
    if facts is None:
        return []
    drawn = [compression_plots.added(records, machine_text(facts))]
    if _MODEL_LINK in links(records):
        drawn.append(compression_plots.by_bandwidth(records, exchanges(records), machine_text(facts)))
    files = [folder / plot_name(path.stem, number) for number in range(len(drawn))]
    for file, svg in zip(files, drawn, strict=True):
        file.write_text(svg, encoding="utf-8")
    return files
