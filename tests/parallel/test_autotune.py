# SPDX-License-Identifier: Apache-2.0
"""Autotuning in real processes: results stay right, ranks choose equal settings, the log has all samples, it ends."""

import csv
import json

import numpy as np
from harness.worlds import DYNAMIC, World, in_worlds
from testkit.launcher import horovodrun, python
from testkit.places import ROOT, TESTS, python_path

import horovod.numpy as hvd
from horovod.common.context import default_context

FAST = {
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "1",
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "8",
} | DYNAMIC
SAMPLES = 1 + 8 + 12
SHM = World("autotune-shm2", "a:2", FAST)
HOSTS = World("autotune-hosts4", "a:2,b:2", FAST)
FIXED = World("autotune-fixed2", "a:2", FAST | {"HOROVOD_CHUNK_BYTES": "8192", "HOROVOD_CYCLE_TIME": "0.5"})
COLUMNS = [
    "hierarchical_allreduce", "hierarchical_allgather", "torus_allreduce", "cache_enabled", "cycle_time_ms",
    "tensor_fusion_threshold", "score", "chunk_bytes", "phase",
]  # fmt: skip
TUNED = ("fusion_threshold", "cycle_time_us", "chunk_bytes")


def state():
    told = json.loads(default_context.world.describe())
    return {name: told[name] for name in ("autotune", *TUNED)}


def step():
    """Run a training step of small and large tensors whose results are known."""
    sizes = (1, 700, 40_000, 300_000)
    handles = [
        hvd.allreduce_async(np.full(size, hvd.rank() + 1.0, np.float32), op=hvd.Sum, name=f"gradient.{size}")
        for size in sizes
    ]
    for handle, size in zip(handles, sizes, strict=True):
        np.testing.assert_array_equal(hvd.synchronize(handle), np.full(size, hvd.size() * (hvd.size() + 1) / 2))
    gathered = hvd.allgather(np.full((50_000,), hvd.rank(), np.int32), name="gather")
    np.testing.assert_array_equal(gathered, np.repeat(np.arange(hvd.size(), dtype=np.int32), 50_000))


def tune():
    """Train until the tuning is done, then five steps more. Return the settings tried and the settings chosen."""
    tried = set()
    for _ in range(10 * SAMPLES):
        step()
        tried.add(tuple(state()[name] for name in TUNED))
        if hvd.allreduce(np.float32(state()["autotune"] == "done"), op=hvd.Sum, name="done") == hvd.size():
            break
    chosen = state()
    for _ in range(5):
        step()
        assert state() == chosen
    assert chosen["autotune"] == "done"
    return sorted(tried), [chosen[name] for name in TUNED]


@in_worlds(SHM, HOSTS, FIXED)
def test_all_ranks_choose_the_same_and_results_stay_right(world):
    answers = world.run(tune, limit_s=60)
    tried, chosen = answers[0]
    assert len(tried) > 2
    assert all(answer[1] == chosen for answer in answers)
    assert tuple(chosen) in tried
    if world.world.name == FIXED.name:
        assert {(cycle, chunk) for _, cycle, chunk in tried} == {(500, 8192)}


TRAINING = f"""
import horovod.numpy as hvd
from testkit.modules import load
hvd.init()
print("chosen", *load({__file__!r}).tune()[1])
"""


def train(log):
    flags = ["-np", "2", "--autotune", "--autotune-log-file", str(log)]
    env = FAST | {"PYTHONPATH": python_path(ROOT, TESTS)}
    done = horovodrun(*flags, *python(TRAINING), env=env, limit_s=55)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_the_log_has_every_sample_and_the_choice(tmp_path):
    log = tmp_path / "autotune.csv"
    printed = train(log).stdout
    with log.open(newline="") as file:
        reader = csv.DictReader(file)
        assert reader.fieldnames == COLUMNS
        rows = list(reader)
    assert [row["phase"] for row in rows] == ["warmup"] + ["search"] * 8 + ["final"] * 12 + ["chosen"]
    assert all(float(row["score"]) > 0 for row in rows)
    last = rows[-1]
    cycle_us = round(float(last["cycle_time_ms"]) * 1000)
    assert f"chosen {last['tensor_fusion_threshold']} {cycle_us} {last['chunk_bytes']}" in printed


def test_a_log_that_cannot_be_written_is_only_a_warning(tmp_path):
    done = train(tmp_path / "missing" / "autotune.csv")
    assert done.stderr.count("WARNING: the autotuner's log") == 1
    assert "HOROVOD_AUTOTUNE_LOG" in done.stderr
