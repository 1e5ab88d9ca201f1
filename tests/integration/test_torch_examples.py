# SPDX-License-Identifier: Apache-2.0
"""The PyTorch examples and two tutorial programs, run briefly on two ranks, print what they promise."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from testkit import places
from testkit.launcher import horovodrun, lines_by_rank
from testkit.needs import need
from testkit.processes import Process

HERE = Path(__file__).parent
EXAMPLES = places.EXAMPLES / "pytorch"
NUMBER = r"(-?\d+(?:\.\d+)?)"
pytestmark = pytest.mark.timeout(150)


def run(program, *words, ranks=2, env=None):
    """Run a program; return the output of the ranks, by rank."""
    command = ["-np", str(ranks), sys.executable, str(program), *map(str, words)]
    done = horovodrun(*command, env={"OMP_NUM_THREADS": "1", **(env or {})}, limit_s=140)
    assert done.returncode == 0, done.stdout + done.stderr
    return {rank: [] for rank in range(ranks)} | lines_by_rank(done.stdout)


def figures(pattern, lines):
    """Return the numbers that a pattern finds in the lines, a tuple for each match; N in it matches a number."""
    found = re.finditer(pattern.replace("N", NUMBER), "\n".join(lines))
    return [tuple(float(number) for number in match.groups()) for match in found]


def test_digits_trains_saves_and_resumes(tmp_path):
    timeline = {"HOROVOD_TIMELINE": str(tmp_path / "timeline.json")}
    first = run(EXAMPLES / "digits.py", "--epochs", 2, "--output", tmp_path, env=timeline)
    assert first[1] == []
    epochs = figures(r"epoch +N/2 .*?loss N  validation N, +N%", first[0])
    assert [epoch[0] for epoch in epochs] == [1, 2]
    assert epochs[1][1] < epochs[0][1]
    assert epochs[1][2] < epochs[0][2]
    assert epochs[1][3] > 50
    one = json.loads((tmp_path / "digits.json").read_text())
    assert one["ranks"] == 2
    assert one["samples_per_epoch"] == 22 * 64

    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again = tmp_path / "again"
    words = ("--epochs", 3, "--steps", 2, "--output", again, "--compare-with", tmp_path / "digits.json")
    second = run(EXAMPLES / "digits.py", "--resume", tmp_path / "digits.pt", *words)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path != again} == before
    assert [epoch[0] for epoch in figures(r"epoch +N/3 .*?loss N", second[0])] == [3]
    assert figures(r"N processes handle N times the samples per second of N", second[0])
    assert figures(r"without any communication between them it is N times", second[0])
    two = json.loads((again / "digits.json").read_text())
    assert two["losses"][:2] == one["losses"]
    assert set(torch.load(again / "digits.pt", weights_only=True)) == {"model", "optimizer", "curves"}
    plot = (again / "digits.svg").read_text()
    assert "training, 2 ranks" in plot
    assert plot.count("validation, 2 ranks") >= 2
    assert f"{two['accuracies'][-1]:.1%}" in (again / "digits.html").read_text()
    third = run(EXAMPLES / "digits.py", "--epochs", 4, "--steps", 2, "--output", again, "--resume")
    assert [epoch[0] for epoch in figures(r"epoch +N/4 .*?loss N", third[0])] == [4]
    names = {event.get("args", {}).get("name") for event in json.loads((tmp_path / "timeline.json").read_text())}
    assert any(name and "0.weight" in name for name in names)


def test_gpt_learns_and_writes():
    words = (
        "--steps",
        30,
        "--report-every",
        15,
        "--layers",
        1,
        "--width",
        64,
        "--context",
        32,
        "--compression",
        "bf16",
    )
    said = run(EXAMPLES / "gpt.py", *words)
    losses = figures(r"step +N/30  held-out loss N", said[0])
    assert [step for step, _ in losses] == [15, 30]
    assert losses[1][1] < losses[0][1] < 3.3
    assert said[0][-1].startswith("it writes: the ")
    assert len(said[0][-1]) == len("it writes: the ") + 160


def test_synthetic_benchmark_tells_speed_and_efficiency():
    words = ("--image-size", 32, "--batch-size", 2, "--warmup-batches", 1, "--batches-per-iteration", 1)
    said = run(EXAMPLES / "synthetic_benchmark.py", *words, "--iterations", 2)[0]
    ((alone, _),) = figures(r"1 rank: +N \+- N images/s", said)
    ((each, _),) = figures(r"2 ranks: +N \+- N images/s for each rank", said)
    ((total, _),) = figures(r"total: +N \+- N images/s on 2 ranks", said)
    ((efficiency,),) = figures(r"scaling efficiency: N%", said)
    assert min(alone, each, total, efficiency) > 0
    assert total == pytest.approx(2 * each, abs=0.2)


def test_imagenet_style_warms_up_and_resumes(tmp_path):
    words = ("--images", 100, "--batch-size", 5, "--batches-per-allreduce", 2, "--checkpoints", tmp_path)
    shape = r"epoch N/3  lr N  loss N \(N%\)  validation N, top-1 N%, top-5 N%"
    first = figures(
        shape.replace("/3", "/2"), run(EXAMPLES / "imagenet_style.py", *words, "--epochs", 2, "--steps", 2)[0]
    )
    # In two warm-up epochs of two steps the factor rises from 1 to 4, because two ranks make two passes each. In the
    # second step of the epochs it has risen by 1/4 and 3/4.
    assert [epoch[1] for epoch in first] == [pytest.approx(0.0125 * factor, abs=1e-4) for factor in (1.75, 3.25)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1.pt", "checkpoint-2.pt"]
    said = run(EXAMPLES / "imagenet_style.py", *words, "--epochs", 3, "--steps", 1, ranks=1)
    assert "goes on after epoch 2" in said[0]
    assert [epoch[0] for epoch in figures(shape, said[0])] == [3]


def test_adasum_and_average_differ():
    said = run(EXAMPLES / "adasum.py", "--epochs", 1, "--steps", 8)[0]
    shape = r"epoch N  Adasum: loss N, accuracy N%  Average: loss N, accuracy N%"
    ((_, adasum, _, average, _),) = figures(shape, said)
    assert adasum != average
    assert max(adasum, average) < 2.35


def test_compression_sends_less_and_learns(tmp_path):
    words = ("--epochs", 2, "--methods", "dense", "int8", "onebit", "--output", tmp_path)
    said = run(EXAMPLES / "compression.py", *words)[0]
    assert len(figures(r"epoch +N/2  validation N, +N%", said)) == 6
    fewer = {name: line for line in said for name in ("dense", "int8", "onebit") if line.split()[:1] == [name]}
    assert {name: float(line.split()[5].rstrip("x")) for name, line in fewer.items()} == {
        "dense": 1.0, "int8": pytest.approx(3.9, abs=0.1), "onebit": pytest.approx(28.6, abs=1)
    }  # fmt: skip
    runs = {one["method"]: one for one in json.loads((tmp_path / "compression.json").read_text())}
    assert runs["int8"]["losses"] == pytest.approx(runs["dense"]["losses"], rel=0.1)
    assert runs["onebit"]["losses"][1] < runs["onebit"]["losses"][0]
    assert "onebit" in (tmp_path / "compression.svg").read_text()


def test_diloco_learns_on_two_sites_behind_a_slow_link():
    need([] if os.geteuid() == 0 else ["root"], "the example makes network namespaces")
    sites = [sys.executable, str(EXAMPLES / "two_sites.py"), "--mbit-per-s", "100"]
    words = ["--epochs", "2", "--every", "11", "--wire", "int8"]
    with Process([*sites, sys.executable, str(EXAMPLES / "diloco.py"), *words]) as job:
        assert job.wait(120) == 0, job.account()
        epochs = figures(r"epoch N/2 +N s +N MB sent over the network +validation N, N%", job.printed().splitlines())
    assert [epoch[0] for epoch in epochs] == [1, 2]
    # 144 thousand parameters are 0.3 MB in a round of two workers, and each epoch has four rounds.
    assert all(0.5 < epoch[2] < 2 for epoch in epochs)
    assert epochs[1][3] < epochs[0][3]


def test_mixed_precision_learns_with_scaled_losses():
    said = run(EXAMPLES / "mixed_precision.py", "--epochs", 2, "--steps", 6, "--scale-loss")[0]
    epochs = figures(r"epoch N/2  validation N, accuracy N%, loss scale N", said)
    assert len(epochs) == 2
    assert epochs[1][1] < epochs[0][1]
    assert epochs[0][3] == 65536


def test_the_program_of_the_tutorials():
    said = run(HERE / "programs" / "tutorial.py")
    accuracies = figures(r"Test set: Average loss: N, Accuracy: N%", said[0])
    assert len(accuracies) == 4
    assert accuracies[-1][1] > 90
    assert accuracies[-1][0] < accuracies[0][0]
    assert len(figures(r"Train Epoch: N \[N/96\]\tLoss: N", said[0])) == 8
    assert said[1] == []


def test_rank_0_alone_validates(tmp_path):
    said = run(HERE / "programs" / "rank_0_validates.py", tmp_path)
    assert len(figures("validation loss N", said[0])) == 20
    assert figures("validation loss N", said[0])[-1][0] < 0.05
    assert said[1] == said[0][-1:]  # both ranks have equal weights, to the last digit
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["epoch"] == 19
