# SPDX-License-Identifier: Apache-2.0
"""Whole programs on the cluster of the tests: Ray's older trainer, those of the documentation, and the examples."""

import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from testkit.places import ROOT
from testkit.processes import run

PROGRAMS = Path(__file__).parent / "programs"
EXAMPLES = ROOT / "examples" / "ray"
LIMIT_S = 280

pytestmark = pytest.mark.timeout(300)


def run_on(cluster: Any, program: Path, arguments: Sequence[str], folder: Path, **env: str) -> str:
    """Return the output of a program, including the output that Ray shows of its workers."""
    env = {"RAY_ADDRESS": cluster.address, **env}
    done = run([sys.executable, str(program), *arguments], env, limit_s=LIMIT_S, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout + done.stderr)


def test_the_older_trainer_of_ray(cluster: Any, tmp_path: Path) -> None:
    program = PROGRAMS / "older_trainer.py"
    printed = run_on(cluster, program, [str(tmp_path)], tmp_path, RAY_TRAIN_V2_ENABLED="0")
    assert "told 3.0 2 0.5" in printed


def snippets() -> list[Any]:
    """Return the programs of docs/ray*.md.

    Those with Tune or TensorFlow are marked slow, so that one job of Ray Train runs for each change.
    """
    found = []
    for page in sorted((ROOT / "docs").glob("ray*.md")):
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            marks = [pytest.mark.slow] if "tune" in match[1] or "tensorflow" in match[1] else []
            line = text[: match.start()].count("\n") + 1
            found.append(pytest.param(match[1], id=f"{page.name} line {line}", marks=marks))
    return found


def test_snippets_are_found() -> None:
    assert len(snippets()) == 4


@pytest.mark.parametrize("source", snippets())
def test_snippet_of_the_documentation(cluster: Any, source: str, tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(source, encoding="utf-8")
    printed = run_on(cluster, program, [], tmp_path)
    if "HorovodTrainer" in source:
        for rank in range(2):
            assert f"(rank {rank} on {socket.gethostname()} pid=" in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("digits.py", ["--epochs", "2"], r"2 workers, 2 epochs: accuracy \d\d"),
        ("serve.py", ["--port", "0"], r"served at http://.*: \d+ of 100 digits read correctly"),
    ],
)
def test_example(cluster: Any, name: str, arguments: list[str], expected: str, tmp_path: Path) -> None:
    arguments = [str(free_port()) if argument == "0" else argument for argument in arguments]
    printed = run_on(cluster, EXAMPLES / name, arguments, tmp_path)
    assert re.search(expected, printed), printed


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "tensorflow"])
def test_keras_example(cluster: Any, backend: str, tmp_path: Path) -> None:
    printed = run_on(cluster, EXAMPLES / "keras_digits.py", ["--epochs", "2"], tmp_path, KERAS_BACKEND=backend)
    assert re.search(rf"{backend}, 2 workers, 2 epochs: accuracy \d\d", printed), printed


@pytest.mark.slow
def test_elastic_example_without_a_cluster(tmp_path: Path) -> None:
    """Check that the example starts Ray on this machine if there is no cluster."""
    env = {"RAY_ADDRESS": "local"}
    done = run([sys.executable, str(EXAMPLES / "elastic.py"), "--epochs", "2"], env, limit_s=LIMIT_S, cwd=tmp_path)
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    assert "Started a local Ray instance" in printed
    assert set(re.findall(r"'epoch': 2, 'rank': (\d), 'size': 2", printed)) == {"0", "1"}, printed
    assert re.search(r"^final loss \d", printed, re.MULTILINE), printed


@pytest.mark.slow
def test_asha_ends_bad_trials_early(cluster: Any, tmp_path: Path) -> None:
    printed = run_on(cluster, EXAMPLES / "tune.py", ["--epochs", "2"], tmp_path)
    epochs = {rate: int(count) for rate, count in re.findall(r"learning rate (\S+): .* after (\d) epochs", printed)}
    assert set(epochs) == {"0.05", "0.02", "0.002", "0.0002"}, printed
    assert max(epochs.values()) == 2, printed
    # The worst rate, and the last to report, because all other trials are ahead of it.
    assert epochs["0.0002"] == 1, printed


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
