# SPDX-License-Identifier: Apache-2.0
"""Links and pictures of the site: links to the repository, redirects, drawings in the page, plots for dark pages."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from site_check import broken_links
from site_plots import both_variants, write_dark_plots
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

_REDIRECT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>This page has moved</title>
<meta http-equiv="refresh" content="0; url={target}"><link rel="canonical" href="{target}">
<p>This page has moved to <a href="{target}">{target}</a>.</p></html>
"""
_LINK = re.compile(r"\]\(((?:\.\./)+[^)\s#]+)(#[^)\s]*)?\)")
_DRAWING = re.compile(r"^!\[[^\]]*\]\(((?:\.\./)*drawings/[\w-]+\.svg)\)$", re.MULTILINE)
_OWN_COLOURS = re.compile("<style>.*?</style>\n|<!--.*?-->\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension with Sphinx."""
    app.add_config_value("repository_url", "", "html")
    app.add_config_value("moved_pages", {}, "html")
    app.connect("builder-inited", lambda app: write_dark_plots(Path(app.srcdir)))
    app.connect("source-read", _link_the_repository)
    app.connect("source-read", _show_pictures)
    app.connect("build-finished", _finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _link_the_repository(app: Sphinx, page: str, source: list[str]) -> None:
    """Turn relative links that leave docs/ into links to the repository."""

    def changed(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), found[1]))
        if target.startswith("docs/"):
            return found[0]
        return f"]({app.config.repository_url}{target}{found[2] or ''})"

    source[0] = _LINK.sub(changed, source[0])


def _show_pictures(app: Sphinx, page: str, source: list[str]) -> None:
    """Put drawings into the page itself, where they take the colours of the theme; show a plot for each theme."""

    def drawn(found: re.Match[str]) -> str:
        text = (Path(app.srcdir) / posixpath.dirname(page) / found[1]).read_text(encoding="utf-8")
        return f'<div class="drawing">{_OWN_COLOURS.sub("", text).strip()}</div>'

    source[0] = both_variants(_DRAWING.sub(drawn, source[0]))


def _finish(app: Sphinx, exception: Exception | None) -> None:
    """Write the redirects, then check all links; raise an error that lists those that lead nowhere."""
    if exception is not None or app.builder.name != "html":
        return
    folder = Path(app.outdir)
    for old, target in app.config.moved_pages.items():
        (folder / f"{old}.html").write_text(_REDIRECT.format(target=target), encoding="utf-8")
    if wrong := list(broken_links(folder)):
        raise ExtensionError("links that lead nowhere:\n" + "\n".join(wrong))
