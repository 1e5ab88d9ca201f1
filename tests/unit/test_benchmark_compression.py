# SPDX-License-Identifier: Apache-2.0
"""Compression benchmark: its bandwidth model, its records, and the page generated from stored records."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchkit import compression_page, compression_results
from benchkit.compression_ways import BOUND, DENSE, FP16, INT8, WAYS
from benchkit.crossover import Exchange, bandwidth_text, fastest, pays_below
from benchkit.marked import replaced
from testkit.places import ROOT

DENSE_MODEL = Exchange("dense", 80e6, 0.1)
MACHINE = {"processor": "Test-CPU", "cores": 2, "load_before": 0.5, "time": "2030-01-01T00:00:00Z"}
ABOUT = {"machine": MACHINE, "rounds": 8, "layers": 5, "width": 2000, "batch": 16, "hosts": 2, "ranks": 4}


def test_a_method_pays_below_the_bandwidth_at_which_both_take_equally_long() -> None:
    method = Exchange("int8", 20e6, 0.4)
    border = pays_below(method, DENSE_MODEL)
    assert math.isclose(border, 8 * 60e6 / 0.3)
    assert math.isclose(method.seconds(border), DENSE_MODEL.seconds(border))
    assert method.seconds(0.9 * border) < DENSE_MODEL.seconds(0.9 * border)
    assert method.seconds(1.1 * border) > DENSE_MODEL.seconds(1.1 * border)


@pytest.mark.parametrize(
    ("bytes_sent", "fixed_s", "expected"),
    [(20e6, 0.1, math.inf), (20e6, 0.0, math.inf), (80e6, 0.2, 0.0), (90e6, 0.2, 0.0), (90e6, 0.0, 0.0)],
)
def test_a_method_may_pay_always_or_never(bytes_sent: float, fixed_s: float, expected: float) -> None:
    assert pays_below(Exchange("it", bytes_sent, fixed_s), DENSE_MODEL) == expected


def test_the_model_goes_through_what_was_measured_and_has_no_negative_time() -> None:
    model = Exchange.measured("it", 10e6, 0.5, 1e9)
    assert math.isclose(model.fixed_s, 0.42)
    assert math.isclose(model.seconds(1e9), 0.5)
    assert Exchange.measured("it", 10e6, 0.01, 1e9).fixed_s == 0


def test_the_fastest_exchange_depends_on_the_bandwidth() -> None:
    models = [DENSE_MODEL, Exchange("int8", 20e6, 0.4), Exchange("topk", 2e6, 1.0)]
    assert [fastest(models, bits).name for bits in (1e7, 5e8, 1e11)] == ["topk", "int8", "dense"]


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        (1.64e9, "1.6 Gbit/s"),
        (9.96e8, "1 Gbit/s"),
        (1e17, "any"),
        (1e8, "100 Mbit/s"),
        (4400, "4.4 kbit/s"),
        (7, "7 bit/s"),
        (math.inf, "any"),
        (0, "none"),
    ],
)
def test_bandwidths_have_two_digits_and_a_unit(bits: float, text: str) -> None:
    assert bandwidth_text(bits) == text


def test_a_part_of_a_page_is_replaced_between_its_marks_only() -> None:
    page = "a\n<!-- it: x.py -->\nold\n<!-- end of it -->\nb\n"
    assert replaced(page, "it", "x.py", "new") == page.replace("old", "new")
    with pytest.raises(ValueError, match="no marks for other"):
        replaced(page, "other", "x.py", "new")


def records() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [{"part": "slow links", "about": ABOUT}]
    for link, bits, seconds in (("100 Mbit/s", 1e8, (6.6, 3.3, 1.9)), ("1 Gbit/s", 1e9, (0.74, 0.37, 0.26))):
        part = {"part": "slow links", "link": link}
        made.append(part | {"tcp_bits_per_s": [0.95 * bits, 0.94 * bits], "bits_per_s": bits, "burst": "64kb"})
        made.append(part | {"way": BOUND.name, "step_s": 0.1, "cpu_s": 0.05, "host_bytes": 0})
        sent = (80e6, 40e6, 20e6)
        for way, found, count in zip((DENSE, FP16, INT8), seconds, sent, strict=True):
            above = {"value": found, "low": 0.9 * found, "high": 1.1 * found}
            numbers = {"step_s": 0.1 + found, "cpu_s": 0.2, "above_s": above, "host_bytes": count}
            made.append(part | {"way": way.name} | numbers)
        above = {"value": 10.0, "low": 9.0, "high": 11.0}
        made.append(part | {"way": "DDP, dense", "step_s": 10.1, "cpu_s": 0.2, "above_s": above, "host_bytes": 120e6})
    made.append({"part": "one host", "about": ABOUT})
    for way, step in ((BOUND, 0.1), (DENSE, 0.2), (FP16, 0.203), (INT8, 0.25)):
        made.append({"part": "one host", "ranks": 2, "way": way.name, "step_s": step, "cpu_s": 0.15})
    made.append({"part": "codecs", "about": {"machine": MACHINE, "values": 10_000_000}})
    return [*made, {"part": "codecs", "way": "int8 decode", "ms": 12.34, "ratio": 1.5, "low": 1.4, "high": 1.6}]


def rows_after(page: str, text: str) -> list[list[str]]:
    lines = page.split(text)[1].strip().splitlines()
    found = []
    for line in lines[[line.startswith("|") for line in lines].index(True) :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def test_tables_have_the_part_above_a_step_without_exchange_and_its_ratio_to_dense() -> None:
    page = "\n".join(compression_page.slow_links("kind", records()))
    rows = {row[0]: row[1:] for row in rows_after(page, "At 100 Mbit/s:")[2:]}
    assert rows[INT8.name] == ["2 s", "1.9 s (1.71 s to 2.09 s)", "3.47", "200 ms", "20.00"]
    assert rows[DENSE.name][2] == "1.00"
    assert rows[BOUND.name] == ["100 ms", "", "", "50 ms", "0"]
    assert "A plain TCP stream gets 94 and 940 Mbit/s there" in " ".join(page.split())
    one_host = {row[0]: row[1:] for row in rows_after(page, "On one host")[2:]}
    assert one_host[INT8.name] == ["250 ms", "+25.0 %", "150 ms"]


def test_the_page_tells_below_which_bandwidth_each_of_our_methods_pays() -> None:
    page = "\n".join(compression_page.slow_links("kind", records()))
    rows = {row[0]: row[1:] for row in rows_after(page, "From these figures")[2:]}
    # At 1 Gbit/s fp16 takes 0.37 s, 0.32 s of it on the wire: 0.05 s are fixed costs. Those of dense are 0.1 s.
    assert rows[FP16.name] == ["50 ms", "3.25 s, measured 3.3 s", "any"]
    assert rows[INT8.name] == ["100 ms", "1.7 s, measured 1.9 s", "any"]
    assert rows[DENSE.name][-1] == ""
    assert "DDP, dense" not in rows


def test_verdicts_compare_with_targets_and_peers() -> None:
    lines = list(compression_page.verdicts(records()))
    assert "100 Mbit/s: khorovod, int8 3.47 x shorter, target 3.5: MISSED" in lines
    assert "100 Mbit/s: khorovod, fp16 2.00 x shorter, target 1.9: met" in lines
    assert "1 Gbit/s: DDP, dense takes 13.51 x as long as khorovod, dense: met" in lines
    assert "one host: khorovod, fp16 1.015 of dense, at most 1.02: met" in lines
    assert "one host: khorovod, int8 1.250 of dense, at most 1.02: MISSED" in lines


def test_plots_name_every_way() -> None:
    pytest.importorskip("matplotlib")
    from benchkit import compression_plots

    bars = compression_plots.added(records(), "footer")
    curves = compression_plots.by_bandwidth(records(), compression_page.exchanges(records()), "footer")
    words = [{it.text for it in ElementTree.fromstring(svg).iter() if it.text} for svg in (bars, curves)]
    assert {"100 Mbit/s", "1 Gbit/s", DENSE.name, INT8.name, "DDP, dense"} <= words[0]
    assert {"dense", "fp16", "int8", "10 Gbit/s"} <= words[1]


def test_a_new_run_of_a_part_replaces_its_lines_and_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "results" / "kind.jsonl"
    compression_results.store(path, records())
    compression_results.store(path, [{"part": "one host", "about": {"new": True}}])
    stored = compression_results.read(path)
    assert compression_results.about(stored, "one host") == {"new": True}
    assert compression_results.of_part(stored, "one host") == []
    assert [it for it in stored if it["part"] == "codecs"] == records()[-2:]
    assert compression_results.links(stored).keys() == {"100 Mbit/s", "1 Gbit/s"}


def test_ways_that_have_to_be_ahead_of_a_peer_exist() -> None:
    names = {way.name for way in WAYS}
    assert {way.of_us for way in WAYS if way.of_us} <= names
    assert {way for targets in compression_page.TARGETS.values() for way in targets} <= names


def test_the_stored_page_is_the_one_that_the_stored_lines_make() -> None:
    files = [(path.stem, compression_results.read(path)) for path in sorted(compression_results.FOLDER.glob("*.jsonl"))]
    assert files
    page = text = (ROOT / "docs" / "compression.md").read_text(encoding="utf-8")
    for (name, script), part in compression_page.sections(files).items():
        assert part
        text = replaced(text, name, script, part)
    assert text == page, "run: python benchmarks/compression.py --page"


def test_the_page_tells_when_the_processors_were_busy_and_when_there_were_few_rounds() -> None:
    page = "\n".join(compression_page.slow_links("kind", records()))
    assert "its 95 % interval" in " ".join(page.split())
    assert "processors busy" not in " ".join(page.split())
    busy = records()
    busy[0] = busy[0] | {"about": ABOUT | {"machine": MACHINE | {"load_before": 15.0}, "rounds": 4}}
    page = " ".join("\n".join(compression_page.slow_links("kind", busy)).split())
    assert "the least and the most of any round" in page
    assert "processors busy" in page
