# SPDX-License-Identifier: Apache-2.0
"""Plots of the documentation's site have a variant for dark pages."""

import sys
import xml.etree.ElementTree as ElementTree

import pytest
from testkit.places import ROOT

sys.path.append(str(ROOT / "docs" / "site"))

from site_plots import both_variants, dark, write_dark_plots

PLOTS = sorted((ROOT / "docs").glob("*.svg"))


@pytest.mark.parametrize("path", PLOTS, ids=lambda path: path.name)
def test_a_dark_plot_has_no_white_areas_and_no_black_text(path):
    text = dark(path.read_text(encoding="utf-8"))
    ElementTree.fromstring(text)  # still well-formed
    assert not {"#ffffff", "#000000", "#1f2328"} & {
        word.lower() for word in text.replace(";", " ").replace('"', " ").split()
    }
    assert "<style>text:not(" in text


def test_dark_plots_are_written_once(tmp_path):
    (tmp_path / "a.svg").write_text('<svg><text style="font: 1px x">t</text></svg>')
    write_dark_plots(tmp_path)
    write_dark_plots(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-dark.svg", "a.svg"]


def test_a_page_shows_both_variants_of_a_plot_but_not_of_a_drawing():
    drawing = "![d](../drawings/ring.svg)"
    shown = both_variants(f"{drawing}\n\n![time, by size](../a.svg)\n")
    assert shown.startswith(drawing)
    assert "```{image} ../a.svg\n:alt: time, by size\n:class: only-light\n```" in shown
    assert "```{image} ../a-dark.svg\n:alt: time, by size\n:class: only-dark\n```" in shown
