# SPDX-License-Identifier: Apache-2.0
"""Parts of hand-written pages that a script generates, between two marks. Pure."""

from __future__ import annotations


def replaced(page: str, name: str, script: str, text: str) -> str:
    """Return the page with this text between the marks of a name; raise ValueError if the page lacks the marks."""
    before, begin, rest = page.partition(f"<!-- {name}: {script} -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->")
    if not (begin and end):
        raise ValueError(f"the page has no marks for {name}: <!-- {name}: {script} --> and <!-- end of {name} -->")
    return f"{before}{begin}{text}\n{end}{after}"
