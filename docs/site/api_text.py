# SPDX-License-Identifier: Apache-2.0
"""A docstring in Google's style as Markdown."""

from __future__ import annotations

import re
import textwrap

_SECTION = re.compile(r"^(Args|Arguments|Returns|Raises|Yields|Attributes|Examples?|Notes?|Warning):\s*$")
_ITEM = re.compile(r"^([\w*`., ]+?)(?: \(([^)]*)\))?: (.*)$")
_TITLES = {"Args": "Arguments", "Example": "Example", "Examples": "Examples"}


def body(docstring: str | None) -> str:
    """Return the Markdown of a docstring; an empty text for None."""
    if not docstring:
        return ""
    made: list[str] = []
    for title, lines in _sections(docstring.splitlines()):
        text = textwrap.dedent("\n".join(lines)).strip("\n")
        if title is None:
            made.append(_prose(text))
        elif title.startswith("Example"):
            made.append(f"**{_TITLES[title]}**\n\n```python\n{_code(text)}\n```")
        elif title in ("Args", "Arguments", "Raises", "Attributes"):
            made.append(f"**{_TITLES.get(title, title)}**\n\n{_items(text)}")
        else:
            made.append(f"**{title}**\n\n{_prose(text)}")
    return "\n\n".join(part for part in made if part)


def _sections(lines: list[str]) -> list[tuple[str | None, list[str]]]:
    found: list[tuple[str | None, list[str]]] = [(None, [])]
    for line in lines:
        if match := _SECTION.match(line):
            found.append((match[1], []))
        elif found[-1][0] is not None and line and not line.startswith(" "):
            found.append((None, [line]))
        else:
            found[-1][1].append(line)
    return found


def _items(text: str) -> str:
    """Return `name: text` entries as a list; lines that are indented further belong to the entry before."""
    items: list[str] = []
    for line in text.splitlines():
        match = _ITEM.match(line)
        if match:
            kind = f" ({_escape(match[2])})" if match[2] else ""
            items.append(f"- `{match[1].strip('`')}`{kind}: {_escape(match[3])}")
        elif line.strip() and items:
            items.append(f"  {_escape(line.strip())}")
        elif line.strip():
            items.append(f"- {_escape(line.strip())}")
    return "\n".join(items)


def _code(text: str) -> str:
    lines = [re.sub(r"^(>>>|\.\.\.) ?", "", line) for line in text.splitlines() if not line.startswith("```")]
    return "\n".join(lines).strip("\n")


def _prose(text: str) -> str:
    """Return paragraphs as they are; blocks that are indented become code, as do those in fences."""
    made: list[str] = []
    fenced = False
    for block in re.split(r"\n\s*\n", text):
        marks = sum(line.lstrip().startswith("```") for line in block.splitlines())
        if fenced or marks:
            made.append(block)
            fenced ^= marks % 2 == 1
        elif block.lstrip().startswith(">>>") or (block.startswith("    ") and made):
            made.append(f"```python\n{_code(textwrap.dedent(block))}\n```")
        else:
            made.append("\n".join(_escape(line) for line in block.splitlines()))
    return "\n\n".join(made)


def _escape(line: str) -> str:
    """Return a line whose characters mean themselves, those between backticks excepted."""
    parts = re.split(r"(`+[^`]*`+)", line)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<>\[\]{}$|])", r"\\\1", part) for part in parts)
