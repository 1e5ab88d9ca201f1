# SPDX-License-Identifier: Apache-2.0
"""A check of the finished site: every link and anchor leads somewhere, and nothing is loaded from another host."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src"}


class _Page(HTMLParser):
    """The anchors of a page, its links, and the addresses of what a browser loads for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values and tag != "meta"}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and "stylesheet" in values.get("rel", ""):
            self.loaded.append(values["href"])
        if address := values.get(_LOADING.get(tag, ""), ""):
            self.loaded.append(address)


def broken_links(folder: Path) -> Iterator[str]:
    """Yield a line for each link of the site that leads nowhere, and for each file that another host would serve."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    for path, page in pages.items():
        where = path.relative_to(folder)
        yield from (f"{where}: loads {it}" for it in page.loaded if urlsplit(it).netloc)
        for link in {*page.links, *page.loaded}:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                yield f"{where}: {link}"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{where}: {link} (no such anchor)"
