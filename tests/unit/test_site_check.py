# SPDX-License-Identifier: Apache-2.0
"""The check of the documentation's site finds broken links and resources loaded from other hosts."""

import sys

import pytest
from testkit.places import ROOT

sys.path.append(str(ROOT / "docs" / "site"))

from site_check import broken_links

GOOD = """<h1 id="top">A</h1><a name="old"></a><a href="sub/b.html#there">b</a><a href="#old">old</a>
<a href="#top">top</a><a href="https://example.org/x#y">elsewhere</a>
<link rel="stylesheet" href="style.css"><img src="a%20b.svg">"""


@pytest.fixture
def site(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.html").write_text(GOOD)
    (tmp_path / "sub" / "b.html").write_text('<p id="there"><a href="../a.html#top">a</a>')
    (tmp_path / "style.css").touch()
    (tmp_path / "a b.svg").touch()
    return tmp_path


def test_a_good_site_has_no_broken_links(site):
    assert list(broken_links(site)) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('<a href="c.html">', "bad.html: c.html"),
        ('<a href="a.html#nowhere">', "bad.html: a.html#nowhere (no such anchor)"),
        ('<a href="#nowhere">', "bad.html: #nowhere (no such anchor)"),
        ('<img src="missing.png">', "bad.html: missing.png"),
        ('<script src="https://example.org/x.js"></script>', "bad.html: loads https://example.org/x.js"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "bad.html: loads //example.org/x.css"),
    ],
)
def test_what_is_wrong_is_named(site, text, found):
    (site / "bad.html").write_text(text)
    assert list(broken_links(site)) == [found]
