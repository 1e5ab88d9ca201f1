# SPDX-License-Identifier: Apache-2.0
"""The documentation as a whole: every page is reachable from the front page, and no link is broken."""

import re

import pytest
from testkit.places import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(path for name in ("docs", "examples") for path in (ROOT / name).rglob("*.md"))])


def test_every_folder_of_examples_has_a_readme_that_names_its_programs():
    folders = [path for path in (ROOT / "examples").iterdir() if any(path.glob("*.py"))]
    assert len(folders) >= 6
    for folder in folders:
        text = (folder / "README.md").read_text(encoding="utf-8")
        assert [path.name for path in folder.glob("*.py") if f"`{path.name}`" not in text] == []


def test_every_page_can_be_reached_from_the_front_page():
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        links = re.findall(r"\]\(([^)\s#:]+\.md)", page.read_text(encoding="utf-8"))
        waiting += {(page.parent / link).resolve() for link in links} - reached
    assert sorted({*(ROOT / "docs").rglob("*.md")} - reached) == []


def test_every_decision_is_in_their_list():
    index = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    decisions = {path.name for path in (ROOT / "docs" / "decisions").glob("*.md")} - {"README.md"}
    assert [name for name in sorted(decisions) if f"]({name})" not in index] == []


# Reference pages: tables of settings, differences and results, and of every operation or method.
REFERENCES = {"settings.md", "compatibility.md", "checked-numbers.md"}
REFERENCES |= {"compression.md", "tensorflow.md", "keras.md", "jax.md"}
MAX_WORDS = 1500


def test_no_page_is_long():
    lengths = {str(path.relative_to(ROOT)): _words(path) for path in (ROOT / "docs").rglob("*.md")}
    references = {f"docs/{name}" for name in REFERENCES}
    assert {name: count for name, count in lengths.items() if count > MAX_WORDS and name not in references} == {}


def _words(page):
    """Return the number of words of a page, without its programs and tables."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return sum(any(character.isalnum() for character in word) for word in text.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http://", "https://", "mailto:")):
            path, _, anchor = target.partition("#")
            found = (page.parent / path).resolve() if path else page
            assert found.exists(), target
            if anchor:
                assert anchor in _anchors(found), target


def _anchors(page):
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return set(re.findall(r'<a name="([^"]+)">', text)) | {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
    }
