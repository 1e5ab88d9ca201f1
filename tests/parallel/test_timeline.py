# SPDX-License-Identifier: Apache-2.0
"""Timelines of real worlds: their contents, starting and stopping, and the files that are left after failures."""

import contextlib
import json
import os
import signal
import subprocess
import time

import numpy as np
import pytest
from harness.arrays import check_equal
from harness.traces import Trace
from harness.worlds import DYNAMIC, SMALL_CHUNKS, TCP, World, in_worlds, on_all_ranks
from testkit.awaiting import await_that
from testkit.launcher import python
from testkit.processes import Process

import horovod.numpy as hvd
from horovod.tools import timeline

ON_REQUEST = {"HOROVOD_TIMELINE": "DYNAMIC"} | SMALL_CHUNKS | DYNAMIC
SHM = World("timeline-shm2", "a:2", ON_REQUEST)
BY_TCP = World("timeline-tcp2", "a:2", ON_REQUEST | TCP)
MIXED = World("timeline-hosts3", "a:2,b:1", ON_REQUEST)
EACH_RANK = World("timeline-each", "a:2", ON_REQUEST | {"HOROVOD_TIMELINE_ALL_RANKS": "1"})
OFF = World("timeline-off", "a:1")

TRANSPORTS = {SHM.name: "SHM", BY_TCP.name: "TCP", MIXED.name: "SHM_TCP"}


def start(path, mark_cycles=False):
    """Start the timeline, and let no rank go on before rank 0 has started it."""
    hvd.start_timeline(path, mark_cycles=mark_cycles)
    hvd.barrier()


def everything(path, mark_cycles=False):
    start(path, mark_cycles)
    for _ in range(3):
        hvd.allreduce(np.ones((2, 3), "float32"), name="sum")
    hvd.allgather(np.ones((hvd.rank() + 1, 2)), name="gather")
    hvd.broadcast(np.ones(600), 0, name="share")
    hvd.alltoall(np.ones(hvd.size() * 2), name="swap")
    hvd.reducescatter(np.ones(hvd.size()), name="part")
    hvd.allreduce(np.ones(4), op=hvd.Adasum, name="ada")
    hvd.barrier()
    with pytest.raises(hvd.HorovodMismatchError):
        hvd.allreduce(np.ones(1 + hvd.rank()), name="wrong")
    hvd.stop_timeline()
    hvd.barrier()
    hvd.allreduce(np.ones(2), name="afterwards")


def slices(trace, name):
    return [event["name"] for event in trace.of(name) if event["ph"] == "B"]


@in_worlds(SHM, BY_TCP, MIXED)
def test_phases_and_names(world, tmp_path):
    started = time.time_ns() // 1000
    world.run(everything, path=str(tmp_path / "t.json"))
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]
    trace = Trace(tmp_path / "t.json")
    assert started <= trace.start <= time.time_ns() // 1000
    assert "allreduce.afterwards" not in trace.names.values()
    over = TRANSPORTS[world.world.name]
    assert slices(trace, "allreduce.sum") == ["NEGOTIATE_ALLREDUCE", "ALLREDUCE", "QUEUE", f"{over}_ALLREDUCE"] * 3
    gather = ["NEGOTIATE_ALLGATHER", "ALLGATHER", "ALLOCATE_OUTPUT", "QUEUE", f"{over}_ALLGATHER"]
    assert slices(trace, "allgather.gather") == gather
    assert slices(trace, "broadcast.share") == ["NEGOTIATE_BROADCAST", "BROADCAST", "QUEUE", f"{over}_BCAST"]
    assert slices(trace, "alltoall.swap") == ["NEGOTIATE_ALLTOALL", "ALLTOALL", "QUEUE", f"{over}_ALLTOALL"]
    part = ["NEGOTIATE_REDUCESCATTER", "REDUCESCATTER", "QUEUE", f"{over}_REDUCESCATTER"]
    assert slices(trace, "reducescatter.part") == part
    assert slices(trace, "allreduce.ada") == ["NEGOTIATE_ADASUM", "ADASUM", "QUEUE", f"{over}_ADASUM_ALLREDUCE"]
    barriers = [name for name in trace.names.values() if name.startswith("barrier")]
    assert [slices(trace, name) for name in barriers[:2]] == [["NEGOTIATE_BARRIER", "BARRIER"]] * 2
    assert slices(trace, "allreduce.wrong") == ["NEGOTIATE_ALLREDUCE"]


@in_worlds(SHM, MIXED)
def test_every_rank_reports_once_and_the_end_describes_the_tensor(world, tmp_path):
    world.run(everything, path=str(tmp_path / "t.json"))
    trace = Trace(tmp_path / "t.json")
    steps = trace.story("allreduce.sum").split("(NEGOTIATE_ALLREDUCE")[1:]
    over = TRANSPORTS[world.world.name]
    for step in steps:
        ready, _, rest = step.partition(")")
        assert sorted(ready.split()) == [str(rank) for rank in range(world.size)]
        assert rest.split() == f"(ALLREDUCE (QUEUE ) ({over}_ALLREDUCE ) )".split()
    assert trace.of("allreduce.sum")[-1]["args"] == {"dtype": "float32", "shape": "[2, 3]"}
    assert trace.of("allgather.gather")[-1]["args"] == {"dtype": "float64", "shape": "[1, 2]"}
    assert trace.of("allreduce.wrong")[-1]["args"] == {"failed": True}


def moved_bytes(path):
    start(path)
    hvd.allreduce(np.ones(1 << 18, np.float32), name="moved")
    hvd.stop_timeline()
    return hvd.counters()


@in_worlds(SHM, BY_TCP, MIXED)
def test_byte_counters_are_tracks(world, tmp_path):
    counters = world.run(moved_bytes, path=str(tmp_path / "t.json"))[0]
    last = {event["name"]: event["args"] for event in Trace(tmp_path / "t.json").of("(bytes)")}
    data = {"sent": counters["data_bytes_sent"], "received": counters["data_bytes_received"]}
    memory = {"read": counters["shared_memory_bytes_read"], "written": counters["shared_memory_bytes_written"]}
    assert last.get("data bytes", {"sent": 0, "received": 0}) == data
    assert last.get("shared memory bytes", {"read": 0, "written": 0}) == memory
    assert ("data bytes" in last, "control bytes" in last) == (world.world is not SHM,) * 2
    assert ("shared memory bytes" in last) == (world.world is not BY_TCP)


@in_worlds(EACH_RANK)
def test_a_file_for_each_rank_and_their_merger(world, tmp_path):
    world.run(everything, path=str(tmp_path / "t.json"), mark_cycles=True)
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["t.0.json", "t.1.json"]
    for rank, path in enumerate(files):
        trace = Trace(path)
        assert trace.names[0] == f"rank {rank}"
        assert any(event.get("name") == "CYCLE_START" for event in trace.events)
        assert str(rank) in trace.story("allreduce.sum")
    timeline.merge(tmp_path / "merged.json", files)
    merged = [event["pid"] for event in json.loads((tmp_path / "merged.json").read_text())]
    assert len(merged) == sum(len(Trace(path).events) for path in files)


def percent_r(path):
    hvd.start_timeline(path)
    hvd.allreduce(np.ones(2), name="x")
    hvd.stop_timeline()
    hvd.stop_timeline()


@in_worlds(SHM)
def test_a_place_for_the_rank_in_the_path(world, tmp_path):
    world.run(percent_r, path=str(tmp_path / "%r.json"))
    assert {path.name: Trace(path).names[0] for path in tmp_path.iterdir()} == {"0.json": "rank 0", "1.json": "rank 1"}


def switch(first, second):
    for path, name in ((first, "one"), (second, "two"), (first, "three")):
        start(path)
        hvd.allreduce(np.ones(2), name=name)
    hvd.stop_timeline()


@in_worlds(SHM)
def test_a_new_path_switches_files(world, tmp_path):
    world.run(switch, first=str(tmp_path / "a"), second=str(tmp_path / "b"))
    for path, name in (("a", "three"), ("b", "two")):
        reduced = [found for found in Trace(tmp_path / path).names.values() if found.startswith("allreduce")]
        assert reduced == [f"allreduce.{name}"]


def under_way(path):
    """Start and stop the timeline while an operation is in flight that waits for the last rank."""
    last = hvd.rank() == hvd.size() - 1
    for step in range(20):
        if not last:
            handle = hvd.allreduce_async(np.ones(2), name="long")
        hvd.start_timeline(f"{path}.{step}")
        hvd.allreduce(np.ones(2), name="short")
        if last:
            handle = hvd.allreduce_async(np.ones(2), name="long")
        if step % 2:
            hvd.synchronize(handle)
        hvd.stop_timeline()
        if not step % 2:
            hvd.synchronize(handle)


@in_worlds(SHM)
def test_started_and_stopped_while_operations_are_under_way(world, tmp_path):
    world.run(under_way, path=str(tmp_path / "t"))
    traces = [Trace(path) for path in tmp_path.iterdir()]
    assert len(traces) == 20
    assert all(slices(trace, "allreduce.short") for trace in traces)


NAMES = ['quo"te', "back\\slash", "new\nline", "bell\a", "\u00e9\u4e2d\U0001f600", "x" * 10_000, "x" * 9_999 + "y"]


def odd_names(path):
    hvd.start_timeline(path)
    for name in NAMES:
        hvd.allreduce(np.ones(2), name=name)
    hvd.stop_timeline()


@in_worlds(SHM)
def test_odd_names(world, tmp_path):
    world.run(odd_names, path=str(tmp_path / "t.json"))
    trace = Trace(tmp_path / "t.json")
    names = [name for name in trace.names.values() if name != "(bytes)"]
    assert names[1:6] == [f"allreduce.{name}" for name in NAMES[:5]]
    assert len(set(names)) == 1 + len(NAMES)
    assert all(len(name) < 200 for name in names)


def sets(path):
    even = hvd.add_process_set([0])
    hvd.start_timeline(path)
    if even.included():
        hvd.allreduce(np.ones(2), name="x", process_set=even)
    hvd.allreduce(np.ones(2), name="x")
    hvd.stop_timeline()
    number = even.process_set_id
    hvd.remove_process_set(even)
    return number


@in_worlds(SHM)
def test_one_name_in_two_process_sets(world, tmp_path):
    number, _ = world.run(sets, path=str(tmp_path / "t.json"))
    trace = Trace(tmp_path / "t.json")
    assert slices(trace, f"allreduce.x (process set {number})")[-1] == "LOCAL_ALLREDUCE"
    assert slices(trace, "allreduce.x")[-1] == "SHM_ALLREDUCE"


def joined(path):
    start(path)
    if hvd.rank() == 1:
        hvd.allreduce(np.ones(2), name="without rank 0")
    hvd.join()
    hvd.allreduce(np.ones(2), name="together")
    hvd.stop_timeline()


@in_worlds(SHM)
def test_what_runs_while_this_rank_has_joined(world, tmp_path):
    world.run(joined, path=str(tmp_path / "t.json"))
    trace = Trace(tmp_path / "t.json")
    assert trace.story("allreduce.without rank 0") == "(NEGOTIATE_ALLREDUCE 1 )"
    assert slices(trace, "allreduce.together")[-1] == "SHM_ALLREDUCE"


@on_all_ranks(SHM)
def test_a_file_that_cannot_be_written_is_a_warning():
    for path in ("/proc/nowhere/t.json", "/dev/full", "/"):
        hvd.start_timeline(path)
        check_equal(hvd.allreduce(np.ones(2), name="x"), np.ones(2))
        hvd.stop_timeline()


def odd_files(folder):
    start(os.path.join(folder, "t\udcff"))
    hvd.stop_timeline()
    for path in ("a\0b", "a\ud800", "", "/" * 5000):
        with pytest.raises(ValueError, match=r"^file_path=.* is not valid: expected a file name of at most 4095 bytes"):
            hvd.start_timeline(path)


@in_worlds(SHM)
def test_any_name_that_a_file_can_have_is_one_and_others_are_refused(world, tmp_path):
    world.run(odd_files, folder=str(tmp_path))
    assert os.listdir(os.fsencode(tmp_path)) == [b"t\xff"]


@on_all_ranks(OFF)
def test_without_the_setting_it_is_refused():
    with pytest.raises(ValueError, match="HOROVOD_TIMELINE=DYNAMIC"):
        hvd.start_timeline("unused")
    with pytest.raises(ValueError, match="HOROVOD_TIMELINE=DYNAMIC"):
        hvd.stop_timeline()


# Tests of a single process whose timeline comes from the environment.

WORK = """
import numpy, horovod.numpy as hvd
hvd.init()
while True:
    for number in range(50):
        hvd.allreduce(numpy.ones(4), name=str(number))
"""


def alone(program, path, **more):
    env = {"HOROVOD_TIMELINE": str(path), "HOROVOD_TIMELINE_MARK_CYCLES": "1"}
    return Process(python(program), env, stderr=subprocess.PIPE, text=True, **more)


def wait_for_size(path, size, limit_s=40):
    await_that(lambda: path.exists() and path.stat().st_size >= size, limit_s, lambda: f"{path}: {size} bytes")


# To start Python once for fifty killed processes, fork a child that initialises Horovod for each timeline.
NURSERY = """
import os, sys, numpy, horovod.numpy as hvd
for path in sys.stdin:
    child = os.fork()
    if child == 0:
        os.environ["HOROVOD_TIMELINE"] = path.strip()
        hvd.init()
        while True:
            for number in range(50):
                hvd.allreduce(numpy.ones(4), name=str(number))
    print(child, flush=True)
    os.waitpid(child, 0)
"""


def test_fifty_killed_processes_leave_valid_json(tmp_path):
    """The files are valid JSON, unless the kill hits the microsecond in which the last bracket moves to a new page.

    That is unlikely unless the machine is busy and the process loses its core at that point. No event is ever cut,
    and the format makes that bracket optional for this reason.
    """
    random = np.random.default_rng(1)
    paths = [tmp_path / f"{number}.json" for number in range(50)]
    with alone(NURSERY, tmp_path / "none", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as nursery:
        for number, path in enumerate(paths):
            nursery.stdin.write(f"{path}\n")
            nursery.stdin.flush()
            child = int(nursery.stdout.readline())
            wait_for_size(path, 1 + number * 2_000)
            # Sleep, because otherwise the kill would always hit the write that made the file grow.
            time.sleep(random.uniform(0, 0.02))
            os.kill(child, signal.SIGKILL)
        nursery.stdin.close()
        assert nursery.wait(40) == 0
    complete = 0
    for path in paths:
        text = path.read_text()
        complete += text.endswith("]\n")
        path.write_text(text if text.endswith("]\n") else text + "]")
        Trace(path, finished=False)
    assert complete >= 45


def test_a_process_that_just_ends_leaves_all_of_it(tmp_path):
    program = WORK.replace("while True", "for step in range(3)")
    with alone(program, tmp_path / "t.json") as process:
        assert process.wait(40) == 0
    trace = Trace(tmp_path / "t.json")
    assert len(slices(trace, "allreduce.49")) == 4 * 3
    assert slices(trace, "allreduce.49")[-1] == "LOCAL_ALLREDUCE"


def test_a_full_disk_ends_the_timeline_and_not_the_job(tmp_path):
    """A limit on the size of files simulates a full disk."""
    program = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))\n" + WORK.replace(
        "while True", "for step in range(500)"
    )
    with alone(program, tmp_path / "t.json") as process:
        _, complaints = process.communicate(timeout=50)
        assert process.returncode == 0
    assert complaints.count("WARNING") == 1
    assert "the job goes on: File too large" in complaints
    assert (tmp_path / "t.json").stat().st_size <= 400_000
    assert len(Trace(tmp_path / "t.json", finished=False).events) > 100


def test_a_forked_child_leaves_the_file_alone(tmp_path):
    program = """
import os, numpy, horovod.numpy as hvd
hvd.init()
hvd.allreduce(numpy.ones(4), name="before")
child = os.fork()
if child == 0:
    os._exit(0 if not hvd.is_initialized() else 1)
assert os.waitpid(child, 0)[1] == 0
hvd.allreduce(numpy.ones(4), name="after")
"""
    with alone(program, tmp_path / "t.json") as process:
        assert process.wait(40) == 0
    assert {"allreduce.before", "allreduce.after"} <= set(Trace(tmp_path / "t.json").names.values())


def test_an_interrupted_script_leaves_all_of_it(tmp_path):
    with alone(WORK, tmp_path / "t.json") as process:
        wait_for_size(tmp_path / "t.json", 10_000)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(40)
        assert process.returncode == -signal.SIGINT
    Trace(tmp_path / "t.json")
