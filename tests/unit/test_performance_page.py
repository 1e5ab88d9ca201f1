# SPDX-License-Identifier: Apache-2.0
"""The performance pages are generated from stored records alone, and show the ratios of these records."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchkit.ledger import Ledger, Sample, read
from testkit.places import ROOT

STORED = Path(__file__).parent / "data" / "performance.jsonl"


@pytest.fixture
def page(tmp_path):
    pytest.importorskip("matplotlib")
    from benchkit.page import write_page

    _, full, _, _, *pictures = write_page(tmp_path / "docs", [read(STORED)], tmp_path)
    return full.read_text(encoding="utf-8"), pictures


@pytest.fixture
def overview(tmp_path):
    pytest.importorskip("matplotlib")
    from benchkit.page import write_page

    return write_page(tmp_path, [read(STORED)], tmp_path)[0].read_text(encoding="utf-8")


def cells_after(page, heading):
    """Return the rows of the first table below a heading, as lists of cells."""
    lines = page.split(f"# {heading}\n")[1].split("##")[0].splitlines()
    table = [line for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_ratios_are_to_each_of_our_ways_and_slower_is_bold(page):
    headings, _, ordinary, shared = cells_after(page[0], "allreduce on 2 ranks")
    assert headings == ["", "ours", "time", "gloo", "mpich", "above the floor"]
    assert ordinary[:4] == ["1 MB", "default", "100 µs (99 µs to 101 µs)", "3.00 (2.90 to 3.10)"]
    assert ordinary[4] == "**0.8** (0.79 to 0.81)"
    assert shared[3:5] == ["6.00 (5.80 to 6.20)", "1.60 (1.50 to 1.70)"]


def test_distance_from_the_floor_is_the_inverse_of_the_ratio_for_the_same_kind_of_memory(page):
    _, _, ordinary, shared = cells_after(page[0], "allreduce on 2 ranks")
    assert ordinary[-1] == "2.00 (1.60 to 2.50)"
    assert shared[-1] == "1.25 (1.22 to 1.28)"


def test_a_full_run_counts_more_than_a_newer_quick_one_but_both_are_named(page):
    assert not any("900 µs (" in cell for row in cells_after(page[0], "allreduce on 2 ranks") for cell in row)
    assert "2026-01-01T00:00:00Z, load 0.1, 2026-02-02T00:00:00Z (quick), load 3.0" in page[0]


def test_costs_of_training_are_above_the_bound_and_for_each_tensor(page):
    ours = cells_after(page[0], "Training step: 200 parameters of 4 B")[3]
    assert ours == ["khorovod", "2 ms", "1 ms (900 µs to 1.1 ms)", "+100.0%", "5 µs", "110 MiB"]


def test_pictures_are_named_in_the_page_and_hold_every_way(page):
    text, pictures = page
    pictures = [path for path in pictures if path.parent.name != "docs"]
    assert {path.name for path in pictures} == {
        "performance-performance-collectives-2.svg",
        "performance-performance-training.svg",
    }
    assert all(f"]({path.name})" in text for path in pictures)
    words = {element.text for element in ElementTree.parse(pictures[0]).iter() if element.text}
    assert {"allreduce", "khorovod", "khorovod, shared", "gloo", "mpich", "floor"} <= words


def test_pictures_are_the_same_each_time(page, tmp_path):
    from benchkit.page import write_page

    again = write_page(tmp_path / "again" / "docs", [read(STORED)], tmp_path / "again")[4:]
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in page[1]]


def test_the_overview_counts_our_default_way_alone(overview):
    assert "faster than Gloo in all 1 comparisons; faster than MPICH in 0 of 1, slower in 1" in overview
    assert "Every loss is at messages of 1 MB or less." in overview.replace("\n  ", " ")
    assert cells_after(overview, "Who is faster")[2:] == [
        ["Test-CPU, 2 cores", "Gloo", "1", "1", "0"],
        ["Test-CPU, 2 cores", "MPICH", "1", "0", "1"],
    ]


def test_the_overview_has_ratios_without_intervals_and_what_training_costs(overview):
    headings, _, row = cells_after(overview, "Allreduce by size")
    assert headings == ["size", "ours", "Gloo", "MPICH", "ours, in shared memory"]
    assert row == ["1 MB", "100 µs", "3.00", "**0.8**", "50 µs"]
    assert cells_after(overview, "Training step")[2] == ["200 parameters of 4 B", "1 ms", "100.0%", ""]


def test_the_overview_shows_two_pictures_and_names_the_full_tables(overview):
    assert overview.count("![") == 2
    assert "bench-output/performance-tables.md" in overview


def test_the_pages_exist_before_anything_was_measured(tmp_path):
    pytest.importorskip("matplotlib")
    from benchkit.page import write_page

    texts = [path.read_text(encoding="utf-8") for path in write_page(tmp_path, [], tmp_path)]
    assert [("No results are stored yet." in text) for text in texts] == [True, True, True, False]


def test_the_stored_pages_are_those_that_the_stored_lines_make():
    from benchkit.hosts_page import gpus_page, hosts_page
    from benchkit.overview import overview

    results = [read(path) for path in sorted((ROOT / "benchmarks" / "results").glob("*.jsonl"))]
    page = overview(results, {path.name for path in (ROOT / "docs").glob("performance-*.svg")})
    made = {"performance.md": page, "performance-hosts.md": hosts_page(results), "performance-gpus.md": gpus_page()}
    assert made == {name: (ROOT / "docs" / name).read_text(encoding="utf-8") for name in made}


def test_what_is_written_reads_back_with_right_ratios(tmp_path):
    about = {"run": "2026-03-03T00:00:00Z", "quick": False, "machine": {"cores": 2}}
    ledger = Ledger(tmp_path / "made.jsonl", about)
    case = {"bytes": 4, "ranks": 2}
    rounds = [[1e-6, 1.1e-6, 0.9e-6]] * 5
    samples = [Sample("khorovod", "ours", rounds), Sample("gloo", "theirs", [[4 * t for t in one] for one in rounds])]
    ledger.add("small", case, samples, ["khorovod"])
    assert len([json.loads(line) for line in ledger.path.read_text().splitlines()]) == 3
    ((ours, theirs),) = read(ledger.path).of("small", bytes=4)
    assert (ours["median"], ours["low"], ours["high"], ours["against"]) == (1.0, 1.0, 1.0, {})
    assert theirs["against"] == {"khorovod": {"value": 4.0, "low": 4.0, "high": 4.0}}


def test_ranks_that_share_a_gpu_are_beside_their_peers(tmp_path):
    from benchkit import gpu_page

    call = {"what": "allreduce", "ranks": 2, "bytes": 16 << 20}
    step = {"what": "step", "ranks": 2, "model": "gpt"}
    rows = [
        {"device": "A GPU", "torch": "9.9", "date": "2030-01-01"},
        {**call, "way": "khorovod", "median_s": 4e-4, "in_a_row_s": 2e-4},
        {**call, "way": "nccl", "median_s": 8e-3, "in_a_row_s": 8e-3},
        {**step, "way": "khorovod", "median_s": 0.021},
        {**step, "way": "alone", "median_s": 0.02},
        {**step, "way": "backend", "median_s": 0.0231},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = "\n".join(gpu_page.section(tmp_path))
    assert "A GPU, torch 9.9, 2030-01-01." in page
    assert "| 2 | 16 MB | 400 µs | 200 µs | 839 GB/s | 20.0x |" in page
    assert "| communication adds | DDP over horovod |" in page
    assert "| GPT, 124 M parameters | 2 | 20.0 ms | 21.0 ms | +5.0% | 1.1x |" in page


def test_many_hosts_are_shown_where_they_were_measured_and_our_choice_is_bold(tmp_path):
    pytest.importorskip("matplotlib")
    from benchkit.page import write_page

    stored = tmp_path / STORED.name
    stored.write_bytes(STORED.read_bytes())
    least_to_most = {"least": 1, "median": 2.5, "most": 4, "rank 0": 3}
    columns = ("start_s", "first_s", "pss_mb", "streams_after_allreduce", "streams")
    check = {"part": "check", "hosts": 32, "ranks": 2} | dict.fromkeys(columns, least_to_most)
    us = {"direct": 10, "ring": 20, "doubling": 30}
    cases = [(8, 4), (9, 4), (16, 256 << 10), (16, 1 << 20), (17, 1 << 20), (16, 16 << 20)]
    compared = [{"part": "compare", "hosts": hosts, "ranks": 1, "bytes": size, "us": us} for hosts, size in cases]
    beside = tmp_path / "many_hosts" / STORED.name
    beside.parent.mkdir()
    beside.write_text("".join(json.dumps(record) + "\n" for record in [{"machine": {}}, check, *compared]))
    page = write_page(tmp_path / "docs", [read(stored)], tmp_path)[2].read_text(encoding="utf-8")
    rows = cells_after(page, "Many hosts")
    assert ["MB of memory", "1", "2.5", "4", "3"] in rows
    bold = [[cell.startswith("**") for cell in row[2:]].index(True) for row in rows[-len(cases) :]]
    assert [list(us)[index] for index in bold] == ["direct", "doubling", "doubling", "direct", "ring", "ring"]
