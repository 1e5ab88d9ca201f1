# SPDX-License-Identifier: Apache-2.0
"""Perfetto's importer reads a timeline as written: every slice in its place, and no import errors."""

import json

import numpy as np
from harness.perfetto import TraceProcessor
from harness.worlds import DYNAMIC, SMALL_CHUNKS, World, in_worlds

import horovod.numpy as hvd

WORLD = World("perfetto", "a:2", {"HOROVOD_TIMELINE": "DYNAMIC"} | SMALL_CHUNKS | DYNAMIC)
SLICES = """
select process.name, slice.name, slice.ts, slice.dur, slice.depth
from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
"""
COMPLAINTS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


def work(path):
    hvd.start_timeline(path, mark_cycles=True)
    hvd.barrier()
    for step in range(20):
        hvd.allreduce(np.ones((2, 3), "float32"), name="sum")
        hvd.allgather(np.ones((hvd.rank() + 1, 2)), name=f'gather "{step % 3}" \u00e9')
    hvd.broadcast(np.ones(600), 0, name="share")
    hvd.stop_timeline()


def written(path):
    """Return (process, slice, start, duration, depth) of every slice in nanoseconds, and the number of cycles."""
    names, opened, found, cycles = {}, {}, [], 0
    for event in json.loads(path.read_text()):
        if event["ph"] == "M" and event["name"] == "process_name":
            names[event["pid"]] = event["args"]["name"]
        at, stack = round(event.get("ts", 0) * 1000), opened.setdefault(event["pid"], [])
        if event["ph"] == "B":
            stack.append((event["name"], at))
        elif event["ph"] == "E":
            name, began = stack.pop()
            found.append((names[event["pid"]], name, began, at - began, len(stack)))
        elif event["ph"] == "X":
            found.append((names[event["pid"]], event["name"], at, 0, len(stack)))
        cycles += event.get("name") == "CYCLE_START"
    return found, cycles


@in_worlds(WORLD)
def test_perfetto_reads_what_was_written(world, tmp_path):
    path = tmp_path / "t.json"
    world.run(work, path=str(path))
    expected, cycles = written(path)
    with TraceProcessor(path) as trace:
        slices = trace.query(SLICES)
        instants = trace.query("select count(*) from slice where name = 'CYCLE_START'")
        complaints = trace.query(COMPLAINTS)
        [(dtype,)] = trace.query(
            "select distinct extract_arg(arg_set_id, 'args.dtype') from slice where name = 'BROADCAST'"
        )
    assert len(expected) > 150
    assert sorted(slices) == sorted(expected)
    assert instants == [(cycles,)]
    assert complaints == []
    assert dtype == "float64"


def test_perfetto_reads_a_timeline_whose_writer_was_killed(tmp_path):
    """Perfetto shows slices without an end as unfinished, and reads an array without its closing bracket."""
    events = ['{"ph":"M","pid":1,"tid":1,"name":"process_name","args":{"name":"x"}}']
    for at, name in ((1.5, "A"), (2.5, "B")):
        events.append(json.dumps({"ph": "B", "pid": 1, "tid": 1, "ts": at, "name": name}))
    path = tmp_path / "t.json"
    path.write_text("[\n" + ",\n".join(events))
    with TraceProcessor(path) as trace:
        assert trace.query(SLICES + " order by slice.ts") == [("x", "A", 1500, -1, 0), ("x", "B", 2500, -1, 1)]
