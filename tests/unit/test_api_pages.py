# SPDX-License-Identifier: Apache-2.0
"""The API pages list every public name of the modules, although their generator does not import these modules."""

import importlib
import re
import sys

import pytest
from testkit.places import ROOT

sys.path.append(str(ROOT / "docs" / "site"))

from api_names import Sources
from api_pages import ELASTIC, MODULES, SHARED, write_pages
from api_text import body


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api")
    write_pages(ROOT / "src", folder)
    return {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}


@pytest.fixture(scope="module")
def sources():
    return Sources(ROOT / "src")


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_on_the_page(pages, sources, module):
    page = pages[module.rpartition(".")[2]]
    names = sources.public(module)
    documented = set(re.findall(r"\{py:\w+\} (\w+)", page)) | set(re.findall(r"\[`(\w+)`\]\(shared\.md#", page))
    assert names
    assert [name for name in names if name not in documented] == []


@pytest.mark.parametrize("module", ["horovod", "horovod.numpy", "horovod.data", "horovod.numpy.elastic", SHARED])
def test_names_read_from_the_source_are_those_of_the_module(sources, module):
    assert sources.public(module) == sorted(set(importlib.import_module(module).__all__))


def test_shared_and_elastic_names_are_documented(pages, sources):
    assert [name for name in sources.public(SHARED) if not re.search(rf"}} {name}\b", pages["shared"])] == []
    for module in ELASTIC:
        assert {"run"} < set(sources.public(f"{module}.elastic"))
        assert f"## {module}.elastic" in pages["elastic"]


def test_a_method_of_an_object_is_shown_as_a_function_without_self(pages):
    assert re.search(r"^::::\{py:function\} rank\(\) -> int$", pages["shared"], re.MULTILINE)
    assert "self" not in "".join(re.findall(r"\{py:function\} .*", "".join(pages.values())))


def test_a_docstring_becomes_lists_and_code():
    text = body("Do it.\n\nArgs:\n    one: the *first*,\n        and more\n    two (int): 2\n\nExample:\n    >>> f()\n")
    assert "Do it." in text
    assert "- `one`: the \\*first\\*,\n  and more\n- `two` (int): 2" in text
    assert "```python\nf()\n```" in text


def test_prose_after_a_section_is_prose():
    assert body("A.\n\nReturns:\n    b\n\nLast.") == "A.\n\n**Returns**\n\nb\n\nLast."
