# SPDX-License-Identifier: Apache-2.0
"""hvd timeline merge: a common clock, a separate process for each rank, and incomplete files."""

import json

import pytest
from typer.testing import CliRunner

from horovod.tools import timeline
from horovod.tools.cli import app


def described(rank, start):
    return {
        "ph": "M",
        "pid": 0,
        "tid": 1,
        "name": "process_name",
        "args": {"name": f"rank {rank}", "rank": rank, "start_time_since_epoch_in_micros": start},
    }


def timeline_of(rank, start, *times):
    tensor = {"ph": "M", "pid": 1, "tid": 1, "name": "process_name", "args": {"name": "allreduce.x"}}
    order = {"ph": "M", "pid": 1, "tid": 1, "name": "process_sort_index", "args": {"sort_index": 1}}
    marks = [{"ph": "X", "pid": 1, "tid": 1, "ts": ts, "dur": 0, "name": str(rank)} for ts in times]
    return [described(rank, start), tensor, order, *marks]


def write(path, events):
    path.write_text(json.dumps(events))
    return path


def merged(tmp_path, *timelines):
    files = [write(tmp_path / f"{index}.json", events) for index, events in enumerate(timelines)]
    output = tmp_path / "merged.json"
    count = timeline.merge(output, files)
    events = json.loads(output.read_text())
    assert len(events) == count
    return events


def test_times_count_from_the_first_start(tmp_path):
    events = merged(tmp_path, timeline_of(0, 5_000_000, 10.5, 400), timeline_of(1, 4_999_900, 50, 120.25))
    assert [(event["name"], event["ts"]) for event in events if "ts" in event] == [
        ("1", 50),
        ("0", 110.5),
        ("1", 120.25),
        ("0", 500),
    ]
    starts = {event["args"].get("start_time_since_epoch_in_micros") for event in events if event["ph"] == "M"}
    assert starts == {4_999_900, None}


def test_ranks_have_processes_of_their_own(tmp_path):
    events = merged(tmp_path, timeline_of(1, 0, 1), timeline_of(0, 0, 2))
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "rank 0", 1: "rank 0: allreduce.x", 2: "rank 1", 3: "rank 1: allreduce.x"}
    order = {event["pid"]: event["args"]["sort_index"] for event in events if event["name"] == "process_sort_index"}
    assert order == {1: 1, 3: 3}
    assert {event["pid"]: event["name"] for event in events if event["ph"] == "X"} == {1: "0", 3: "1"}


def test_events_of_one_moment_keep_their_order(tmp_path):
    slices = [{"ph": phase, "pid": 1, "tid": 1, "ts": 7, "name": "a"} for phase in "BBEEBE"]
    events = merged(tmp_path, [described(0, 0), *slices], timeline_of(1, 0, 7))
    assert "".join(event["ph"] for event in events if event.get("pid") == 1) == "BBEEBE"


def test_two_parts_of_one_rank_stay_apart(tmp_path):
    events = merged(tmp_path, timeline_of(0, 0, 1), timeline_of(0, 100, 1))
    assert [(event["pid"], event["ts"]) for event in events if event["ph"] == "X"] == [(1, 1), (3, 101)]


@pytest.mark.parametrize("end", ["", "\n", ",\n", "   "])
def test_an_array_without_its_end_is_read(tmp_path, end):
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(timeline_of(3, 9, 1, 2)).rstrip("]") + end)
    loaded = timeline.load(path)
    assert (loaded.rank, loaded.start, len(loaded.events)) == (3, 9, 5)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("{", "is not JSON"), ('{"a": 1}', "is not JSON"), ("[1]", "not an array of events"), ("[]", "when it started")],
)
def test_other_files_are_refused_by_name(tmp_path, text, complaint):
    path = tmp_path / "other.json"
    path.write_text(text)
    result = CliRunner().invoke(app, ["timeline", "merge", str(tmp_path / "out.json"), str(path)])
    assert result.exit_code == 1
    assert str(path) in result.output
    assert complaint in result.output
    assert not (tmp_path / "out.json").exists()


def test_the_command(tmp_path):
    files = [str(write(tmp_path / f"{rank}.json", timeline_of(rank, rank, 1))) for rank in range(3)]
    result = CliRunner().invoke(app, ["timeline", "merge", str(tmp_path / "out.json"), *files])
    assert result.exit_code == 0, result.output
    assert "12 events of 3 timelines" in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.json", "1.json", "2.json", "out.json"]


@pytest.mark.parametrize("is_input", [True, False])
def test_no_existing_file_is_replaced(tmp_path, is_input):
    output = write(tmp_path / "out.json", timeline_of(0, 0, 1))
    before = output.read_text()
    other = str(write(tmp_path / "1.json", timeline_of(1, 1, 1)))
    inputs = [other, str(output)] if is_input else [other]
    refused = CliRunner().invoke(app, ["timeline", "merge", str(output), *inputs])
    assert refused.exit_code == 1
    assert "out.json exists" in refused.output
    assert output.read_text() == before


def test_a_forgotten_output_name_costs_no_timeline(tmp_path):
    files = [str(write(tmp_path / f"{rank}.json", timeline_of(rank, rank, 1))) for rank in range(2)]
    before = (tmp_path / "0.json").read_text()
    refused = CliRunner().invoke(app, ["timeline", "merge", *files])
    assert refused.exit_code == 1
    assert "0.json exists" in refused.output
    assert (tmp_path / "0.json").read_text() == before
    forced = CliRunner().invoke(app, ["timeline", "merge", "--force", *files])
    assert "4 events of 1 timelines" in forced.output
    assert (tmp_path / "0.json").read_text() != before
