# SPDX-License-Identifier: Apache-2.0
"""Every flag of horovodrun has an effect, or its help, the docs and a warning on use say that it has none."""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import horovod
from horovod.launcher import without_effect
from horovod.launcher.arguments import DEFAULTS
from horovod.launcher.launch import parse_args
from horovod.launcher.options import FLAG_SETTINGS, JobOptions
from horovod.launcher.start.worker_environment import flag_environment

ROOT = Path(__file__).parents[2]
LAUNCHER = ROOT / "src" / "horovod" / "launcher"
HOLDERS = ("args", "given", "options")  # variables that hold parsed flags in the launcher's code
DEFAULT_ANYWAY = {"use_gloo"}


def reads_in(tree: ast.AST) -> Iterator[str]:
    """Yield names read as `options["name"]`, `options.get("name")` or `options.name`, except in checks."""
    if isinstance(tree, ast.FunctionDef) and tree.name.startswith(("_check", "check_")):
        return
    for node in ast.iter_child_nodes(tree):
        yield from reads_in(node)
    match tree:
        case ast.Subscript(value=ast.Name(id=holder), slice=ast.Constant(value=str(name)), ctx=ast.Load()):
            pass
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id=holder), attr="get"), args=[ast.Constant(value=str(name)), *_]
        ):
            pass
        case ast.Attribute(value=ast.Name(id=holder), attr=name):
            pass
        case _:
            return
    if holder in HOLDERS:
        yield name


def test_every_flag_is_read_or_listed_as_without_effect() -> None:
    files = [file for file in LAUNCHER.rglob("*.py") if file.name != "arguments.py"]
    read = {name for file in files for name in reads_in(ast.parse(file.read_text()))}
    # The flags in FLAG_SETTINGS become environment variables, which the next test checks.
    own = DEFAULTS.keys() - FLAG_SETTINGS.keys()
    assert own - read - DEFAULT_ANYWAY == without_effect.FLAGS.keys()
    assert read & without_effect.FLAGS.keys() == set()


def test_every_flag_of_a_setting_becomes_its_variable() -> None:
    values = {bool: True, int: 1, float: 0.5, str: "1"}
    given = {dest: values[setting.type] for dest, setting in FLAG_SETTINGS.items()}
    expected = {setting.name for setting in FLAG_SETTINGS.values()}
    assert flag_environment(JobOptions.of(given)).keys() == expected


def test_every_argument_of_run_is_read_or_listed() -> None:
    tree = ast.parse((LAUNCHER / "run_function.py").read_text())
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "run")
    used = {node.id for part in function.body for node in ast.walk(part) if isinstance(node, ast.Name)}
    assert inspect.signature(horovod.run).parameters.keys() - used == set()


def test_the_help_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_args(["--help"])
    shown = re.sub(r"\s+", " ", capsys.readouterr().out)
    for flag in without_effect.FLAGS.values():
        assert re.search(rf"{flag}\b[^;]*; accepted, no effect in this version", shown), flag
    for flag in ("--no-torus-allreduce", "--num-nccl-streams N"):
        assert re.search(rf"{flag} [^-]*Accepted, no effect in this version", shown), flag


def test_check_build_tells_the_truth_about_gloo() -> None:
    from horovod.launcher.check_build import report

    text = report()
    assert text.count("    [ ] Gloo\n") == 2
    assert text.count("    [X] Khorovod\n") == 2
    assert "[ ] Gloo  (not part of this package: Khorovod's own engine takes its place)" in report(verbose=True)


@pytest.mark.parametrize("found", [("Open MPI v5.0.11", ""), ("", "mpi4py is not installed")])
def test_check_build_tells_the_truth_about_mpi(monkeypatch: pytest.MonkeyPatch, found: tuple[str, str]) -> None:
    from horovod.common import mpi_library
    from horovod.launcher.check_build import report

    monkeypatch.setattr(mpi_library, "look", lambda: found)
    assert report(verbose=True).count(f"    [{'X' if found[0] else ' '}] MPI  ({found[0] or found[1]})\n") == 2


def test_values_that_are_given_are_found() -> None:
    options = JobOptions.of(vars(parse_args(["-np", "1", "--slots-per-host", "2", "--disable-cache", "true"])))
    assert without_effect.given(options) == ["disable_cache"]
    assert without_effect.given_without_driver(options) == ["slots"]
    assert without_effect.given_without_driver(replace(options, min_num_proc=1)) == []
    assert without_effect.given(JobOptions.of(DEFAULTS)) == []


def test_horovod_run_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("horovod.launcher.run_function.results_of", lambda *_: [])
    horovod.run(print, ssh_port=22, slots=2, disable_cache=False)
    assert caplog.messages == [
        "horovod.run: slots has no effect without min_num_proc or host_discovery_script: the job is not elastic"
    ]
