# SPDX-License-Identifier: Apache-2.0
"""The TensorFlow examples, run briefly on two ranks, print what they promise."""

import re
import sys

import pytest
from testkit.launcher import horovodrun, lines_by_rank
from testkit.places import EXAMPLES

NUMBER = r"(-?\d+(?:\.\d+)?)"
pytestmark = pytest.mark.timeout(300)


def run(program, *words):
    """Run an example; return the output of rank 0. Rank 1 must print nothing."""
    one_thread = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = ["-np", "2", sys.executable, str(EXAMPLES / "tensorflow2" / program), *map(str, words)]
    done = horovodrun(*command, env={**one_thread, "CUDA_VISIBLE_DEVICES": ""}, limit_s=280)
    assert done.returncode == 0, done.stdout + done.stderr
    said = lines_by_rank(done.stdout)
    assert set(said) <= {0}
    return "\n".join(said[0])


def figures(pattern, text):
    """Return the numbers that a pattern finds, one tuple for each match; N in the pattern matches a number."""
    return [tuple(map(float, match.groups())) for match in re.finditer(pattern.replace("N", NUMBER), text)]


def test_digits_learns():
    epochs = figures(r"epoch +N/2  loss N  validation N, +N%", run("digits.py", "--epochs", 2))
    assert [epoch[0] for epoch in epochs] == [1, 2]
    assert epochs[1][1] < epochs[0][1]
    assert epochs[1][3] > 70


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_learns(policy):
    epochs = figures("validation N, accuracy N%", run("mixed_precision.py", "--epochs", 2, "--policy", policy))
    assert len(epochs) == 2
    assert epochs[1][0] < epochs[0][0]
    assert epochs[1][1] > 50


def test_it_goes_on_where_it_was(tmp_path):
    words = ("--steps", 4, "--checkpoints", tmp_path)
    first = run("resume.py", "--epochs", 2, *words)
    assert "goes on" not in first
    assert [epoch for epoch, _ in figures("epoch N/2 .*?accuracy N", first)] == [1, 2]
    second = run("resume.py", "--epochs", 3, *words)
    assert "goes on after epoch 2" in second
    assert [epoch for epoch, _ in figures("epoch N/3 .*?accuracy N", second)] == [3]


def test_synthetic_benchmark_tells_speeds():
    words = ("--model", "MobileNetV2", "--image-size", 32, "--batch-size", 2, "--warmup-batches", 1)
    said = run("synthetic_benchmark.py", *words, "--batches-per-iteration", 1, "--iterations", 2)
    ((each, _),) = figures(r"2 ranks: N \+- N images/s for each rank", said)
    ((total, _),) = figures(r"total: N \+- N images/s on 2 ranks", said)
    assert each > 0
    assert total == pytest.approx(2 * each, abs=0.2)
