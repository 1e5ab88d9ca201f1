# SPDX-License-Identifier: Apache-2.0
"""Examples report which missing package to install."""

import ast
import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TUTORIAL = EXAMPLES / "keras" / "tensorflow_tutorial.py"  # an example without a main function


def is_program(path):
    return '__name__ == "__main__"' in path.read_text(encoding="utf-8") or path == TUTORIAL


PROGRAMS = sorted(filter(is_program, EXAMPLES.rglob("*.py")))


def imported_by(path):
    """Return the packages outside the standard library that a program imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names)


@pytest.fixture
def missing(monkeypatch):
    """Return a function that makes packages look uninstalled, given their names."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def hide(*names):
        for name in [one for one in sys.modules if one.partition(".")[0] in names]:
            monkeypatch.delitem(sys.modules, name)
        for name in names:
            monkeypatch.setitem(sys.modules, name, None)

    yield hide
    for name in set(sys.modules) - before:
        if (sys.modules[name] is not None) and str(getattr(sys.modules[name], "__file__", "")).startswith(
            str(EXAMPLES)
        ):
            del sys.modules[name]


# Programs that need only the standard library have nothing to install.
NEEDY = [path for path in PROGRAMS if imported_by(path)]


@pytest.mark.parametrize("path", NEEDY, ids=[str(path.relative_to(EXAMPLES)) for path in NEEDY])
def test_every_example_says_what_to_install(path, missing):
    beside = {other.stem for other in path.parent.glob("*.py")}
    packages = imported_by(path) - beside - {"horovod", "numpy", "digits_data"}
    missing(*(packages or {"horovod"}))
    sys.path.insert(0, str(path.parent))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="example")
    text = str(ended.value)
    assert re.search(
        r"(No module named|import of|horovod\.jax needs) '?[\w.]+'?.*; this example needs: pip install '?khorovod", text
    ), text
    extras = re.findall(r"khorovod\[([\w,-]+)\]", text)
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(re.search(rf"^{extra} = \[", declared, re.MULTILINE) for extra in ",".join(extras).split(",") if extra)


def test_without_matplotlib_the_run_is_not_lost(missing, capsys, tmp_path):
    missing("matplotlib")
    report = runpy.run_path(str(EXAMPLES / "pytorch" / "digits_report.py"))
    report["save_plot"](tmp_path / "digits.svg", None, None)
    assert "pip install 'khorovod[examples]' for matplotlib" in capsys.readouterr().out
    assert not (tmp_path / "digits.svg").exists()


def test_the_page_of_the_demo_shows_both_runs_in_both_themes(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(EXAMPLES / "pytorch"))
    page = runpy.run_path(str(EXAMPLES / "pytorch" / "digits_page.py"))
    measured = {"train_losses": [2.0, 0.5], "losses": [1.0, 0.3], "accuracies": [0.5, 0.9], "epoch_seconds": [1.0, 1.0]}
    two, one = (page["Run"](ranks=ranks, seed=1, samples_per_epoch=8, **measured) for ranks in (2, 1))
    page["save_page"](tmp_path / "digits.html", two, one)
    text = (tmp_path / "digits.html").read_text(encoding="utf-8")
    assert "<h1>Reading digits on 2 ranks</h1>" in text
    assert "1 rank<" in text
    loss, accuracy = re.findall(r"<figure>.*?</figure>", text)
    assert (loss.count("<polyline"), accuracy.count("<polyline")) == (4, 2)
    assert {"prefers-color-scheme: dark", "width=device-width"} <= set(re.findall(r"[\w-]+: dark|width=[\w-]+", text))
    page["save_page"](tmp_path / "digits.html", one, None)
    assert "on 1 rank<" in (tmp_path / "digits.html").read_text(encoding="utf-8")
