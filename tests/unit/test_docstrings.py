# SPDX-License-Identifier: Apache-2.0
"""Docstrings of public names describe each argument and what is returned, and are those of the table."""

import ast
import re
import subprocess
import sys

import pytest
from harness.docstring_examples import example_in, problem_of
from testkit.docstrings.entry import Entry, docstring
from testkit.docstrings.tables import INTERNAL_CLASSES, MODULES, NAMES, NOT_FOR_PROGRAMS
from testkit.docstrings.writer import definitions, targets, written
from testkit.places import ROOT

import horovod.data

sys.path.append(str(ROOT / "docs" / "site"))

from api_names import Sources

# Kept for programs written for Horovod; the compatibility page describes them.
WITHOUT_TEXT: set[str] = set()
DEFINITIONS = {f"{one.module}.{one.name}": one for one in definitions()}


def section(text, title):
    """Return the lines below a title, without their indentation."""
    found = re.search(rf"^{title}:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
    return re.sub(r"^    ", "", found[1], flags=re.MULTILINE) if found else ""


def test_sources_hold_the_docstrings_of_the_table():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "docstrings"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_docstring_that_was_edited_is_noticed_and_mended(tmp_path):
    target = next(one for one in targets() if one.public.endswith(".rank") and "ProcessSet" not in one.public)
    text = target.path.read_text(encoding="utf-8")
    copy = tmp_path / "copy.py"
    copy.write_text(text.replace("Return this process's rank,", "Return something,"), encoding="utf-8")
    (node,) = (one for one in ast.walk(ast.parse(copy.read_text())) if getattr(one, "name", "") == "rank")
    moved = type(target)(target.public, target.api, copy, node, target.names, target.entry)
    assert copy.read_text() != text
    assert written(copy, [moved]) == text


def test_every_public_name_has_a_text():
    assert {target.public for target in targets()} | WITHOUT_TEXT == set(DEFINITIONS)


@pytest.mark.parametrize("public", sorted(set(DEFINITIONS) - WITHOUT_TEXT))
def test_a_docstring_is_complete(public):
    node = DEFINITIONS[public].node
    text = ast.get_docstring(node) or ""
    summary, *_ = text.split("\n\n")
    assert re.fullmatch(r"[A-Z](?!.*\. ).*\.", summary), "no summary of one sentence in one line"
    described = re.findall(r"^(\**\w+): \S", section(text, "Args"), re.MULTILINE)
    assert described == DEFINITIONS[public].names
    is_none = isinstance(node, ast.ClassDef) or (isinstance(node.returns, ast.Constant) and node.returns.value is None)
    assert bool(section(text, "Returns")) is not is_none
    if "." not in DEFINITIONS[public].name:
        assert section(text, "Example").startswith(">>> ")


def test_every_public_method_has_a_text():
    sources, missing = Sources(ROOT / "src"), set()
    for module in MODULES:
        for name in NAMES.get(module) or sources.public(module):
            found = sources.find(module, name)
            if found is not None and isinstance(found.node, ast.ClassDef):
                for method, definitions_of in sources.methods(found).items():
                    classes = {class_name for class_name, _ in definitions_of}
                    texts = [ast.get_docstring(one.node) for _, one in definitions_of]
                    if method not in NOT_FOR_PROGRAMS and not classes & INTERNAL_CLASSES and not any(texts):
                        missing.add(f"{module}.{name}.{method}")
    assert missing == set()


def test_an_argument_without_a_text_is_an_error():
    with pytest.raises(ValueError, match="no text for the arguments .*other"):
        docstring(Entry("Do it.", args={"one": "The first."}), ["one", "other"], {}, {}, 4)
    with pytest.raises(ValueError, match="gone"):
        docstring(Entry("Do it.", args={"gone": "The first."}), [], {}, {}, 4)


@pytest.mark.parametrize("name", horovod.data.__all__)
def test_examples_of_the_data_loaders_run(name):
    lines = example_in(getattr(horovod.data, name).__doc__)
    assert lines
    assert problem_of(lines, dict(vars(horovod.data)), 0) == ""


def test_an_example_that_is_wrong_is_noticed():
    assert problem_of(["1 + 1  # on 2 ranks: 3"], {}, 0) == "['1 + 1  # on 2 ranks: 3'] gave 2"
    assert problem_of(["1 + 1  # on rank 1 of 2: 3"], {}, 0) == ""
    assert "ZeroDivisionError" in problem_of(["x = 1 / 0"], {}, 0)
