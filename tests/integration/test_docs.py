# SPDX-License-Identifier: Apache-2.0
"""Run the Python examples and console commands of the README and the docs. Examples that start no ranks get two.

A code block with a reason, such as "```console needs=slurm", is not run; test_what_does_not_run prints these blocks.
"""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from testkit.launcher import HOROVODRUN
from testkit.places import ROOT
from testkit.preloaded import TORCH, Preloaded, command
from testkit.processes import run
from testkit.speed import patience


def _is_installed(framework: str) -> bool:
    spec = find_spec(framework)
    return spec is not None and spec.origin is not None  # a folder without __init__.py is not a package


# Pages of frameworks that are not installed here: `make test-jax` and `make test-mxnet` run these examples.
ELSEWHERE = {ROOT / "docs" / f"{name}.md" for name in ("jax", "mxnet") if not _is_installed(name)}
# tests/parallel runs these examples in ranks that have imported the framework; tests/ray runs those of its pages.
ELSEWHERE |= {ROOT / "docs" / f"{name}.md" for name in ("keras", "ray", "ray-executors", "tensorflow")}
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").rglob("*.md")} - ELSEWHERE)]
# Other tests run these tools and flags for each change, in less time.
TESTED_ELSEWHERE = ("hvd doctor", "hvd test", "torchrun", "horovodrun -np 2 --", "horovodrun -np 2 python train.py --")
NEEDS = {"slurm", "gpu", "kubernetes", "network"}
# Code that the text around an example presupposes, by the example's first line.
_COMMITS = """\
import torch
import horovod.torch as hvd
from horovod.torch import elastic
hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sampler = elastic.ElasticSampler(range(4))
train = elastic.run(lambda state: state.commit())
"""
GIVEN = {
    "import horovod.torch as hvd  # or .tensorflow": "import torch\nmodel = torch.nn.Linear(2, 1)\n",
    "state = elastic.TorchState(model": _COMMITS,
}


def blocks():
    for page in PAGES:
        for match in re.finditer(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
            line = page.read_text(encoding="utf-8")[: match.start()].count("\n") + 1
            # If HOROVOD_TEST_DOORS requires torch, as in CI, examples fail without it instead of being skipped.
            optional = "torch" not in os.environ.get("HOROVOD_TEST_DOORS", "")
            missing = optional and "torch" in match[1] and find_spec("torch") is None
            marks = [pytest.mark.skip(reason="torch is not installed")] if missing else []
            yield pytest.param(match[1], id=f"{_name(page)}:{line}", marks=marks)


def _name(page):
    return str(page.relative_to(ROOT / "docs")) if ROOT / "docs" in page.parents else page.name


def commands():
    """Yield each command of the console blocks once, under the first page that has it."""
    seen = set()
    for page in PAGES:
        for text in re.findall(r"^```console\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
            for typed in re.findall(r"^\$ (.*)$", text, re.MULTILINE):
                if typed not in seen:
                    marks = [pytest.mark.slow] if typed.startswith(TESTED_ELSEWHERE) else []
                    yield pytest.param(typed, id=f"{_name(page)}: {typed}", marks=marks)
                seen.add(typed)


BLOCKS = list(blocks())


def test_examples_are_found():
    assert {"README.md", "numpy.md", "pytorch.md"} <= {block.id.partition(":")[0] for block in BLOCKS}


def test_what_does_not_run():
    left = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"^```(?:python|console) (.*)$", text, re.MULTILINE):
            left.append((f"{_name(page)}:{text[: match.start()].count(chr(10)) + 1}", match[1]))
    print("\n".join(f"{where} {reason}" for where, reason in left))
    assert {reason for _, reason in left} <= {f"needs={need}" for need in NEEDS}


@pytest.fixture(scope="module")
def with_torch(tmp_path_factory):
    """Return environment variables that make ranks fork from a process that has imported PyTorch."""
    if not _is_installed("torch"):
        yield {}
        return
    path = str(tmp_path_factory.mktemp("docs") / "preloaded")
    with Preloaded(path, TORCH, {"OMP_NUM_THREADS": "1"}) as server:
        yield server.variables


@pytest.mark.parametrize("source", BLOCKS)
@pytest.mark.timeout(120)
def test_example(source, tmp_path, request):
    given = "".join(text for start, text in GIVEN.items() if source.startswith(start))
    program = tmp_path / "example.py"
    program.write_text(given + source, encoding="utf-8")
    env = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    words = [sys.executable, str(program)]
    if "import torch" in source and "README" not in request.node.name:
        env |= request.getfixturevalue("with_torch")
        words = command(str(program))
    launcher = [] if "horovod.run(" in source else [*HOROVODRUN, "-np", "2"]
    done = run([*launcher, *words], env, limit_s=110, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("typed", list(commands()))
@pytest.mark.timeout(120)
def test_command(typed, tmp_path, request):
    page = (ROOT / "docs" / "start" / "five-lines.md").read_text(encoding="utf-8")
    (tmp_path / "train.py").write_text(re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)[0])
    if typed == "hvd stacks":
        # Without a process ID it would also ask ranks of other tests, which may be frozen or end meanwhile.
        typed = f"{typed} {request.getfixturevalue('job_that_waits').pid}"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = run(["bash", "-c", typed], {"PATH": path, "OMP_NUM_THREADS": "1"}, limit_s=110, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def job_that_waits(launch, gate):
    """Return a job of two ranks that run until the test ends."""
    program = f"import horovod.numpy as hvd; hvd.init(); print('waiting', flush=True); {gate.pass_through}"
    job = launch("-np", "2", sys.executable, "-c", program, stdout=subprocess.PIPE, text=True)
    lines = {job.stdout.readline() for _ in range(2)}
    assert lines == {"[0]<stdout>:waiting\n", "[1]<stdout>:waiting\n"}
    yield job
    gate.open(2)
    assert job.wait(timeout=patience(20)) == 0
