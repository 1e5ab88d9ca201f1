# SPDX-License-Identifier: Apache-2.0
"""Find the definitions of public names, and put the docstrings of the table where theirs are."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs" / "site"))

from api_names import Sources

from testkit.docstrings.entry import Entry, docstring, parameters
from testkit.docstrings.tables import ARGUMENTS, INNER, MODULES, TABLES
from testkit.docstrings.words import WORDS

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"


@dataclass(frozen=True)
class Target:
    """A definition whose docstring the table holds.

    Args:
        public: The public name, with its module.
        api: The table that has its entry, and the words to use.
        path: The file.
        node: The function or class in it.
        names: Its arguments, without `self`.
        entry: The text.
    """

    public: str
    api: str
    path: Path
    node: ast.FunctionDef | ast.ClassDef
    names: list[str]
    entry: Entry

    def literal(self) -> str:
        """Return the lines of the docstring."""
        column = self.node.col_offset + 4
        try:
            return docstring(self.entry, self.names, ARGUMENTS, WORDS[self.api], column)
        except (KeyError, ValueError) as error:
            raise SystemExit(f"scripts/docstrings: {self.public}: {error!r}") from error


def definitions(root: Path = SOURCES) -> Iterator[tuple[str, str, str, Path, ast.FunctionDef | ast.ClassDef, bool]]:
    """Yield each public function and class once, with its API, module, name, file, and if it is a method."""
    sources = Sources(root)
    seen: set[tuple[Path, int]] = set()
    for module, api in MODULES.items():
        for name in sources.public(module):
            found = sources.find(module, name)
            inner = INNER.get((module, name))
            if inner is not None:
                tree = sources.tree(inner[0])
                node = _inner(tree, inner[1])
                where, is_method = inner[0], False
            elif found is None or not isinstance(found.node, (ast.FunctionDef, ast.ClassDef)):
                continue
            else:
                node, where, is_method = found.node, found.module, found.is_method
            path = sources.path(where)
            assert path is not None
            if (path, node.lineno) not in seen:
                seen.add((path, node.lineno))
                yield api, module, name, path, node, is_method


def _inner(tree: ast.AST | None, qualified: str) -> ast.FunctionDef | ast.ClassDef:
    """Return a definition inside of a function."""
    node = tree
    for name in qualified.split("."):
        assert node is not None
        children = ast.walk(node)
        node = next(one for one in children if isinstance(one, (ast.FunctionDef, ast.ClassDef)) and one.name == name)
    assert isinstance(node, (ast.FunctionDef, ast.ClassDef))
    return node


def targets(root: Path = SOURCES) -> list[Target]:
    """Return the definitions that the table names."""
    found = []
    for api, module, name, path, node, is_method in definitions(root):
        entry = TABLES[api].get(name) or TABLES["shared"].get(name)
        if entry is not None:
            found.append(Target(f"{module}.{name}", api, path, node, parameters(node, is_method), entry))
    return found


def written(path: Path, wanted: list[Target]) -> str:
    """Return the text of a file with the table's docstrings."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for target in sorted(wanted, key=lambda one: -one.node.lineno):
        first, last = _place(target.node)
        gap = ["\n"] if isinstance(target.node, ast.ClassDef) and lines[last : last + 1] != ["\n"] else []
        lines[first:last] = [target.literal(), *(gap if last < len(lines) and not _is_end(target.node) else [])]
    return "".join(lines)


def _place(node: ast.FunctionDef | ast.ClassDef) -> tuple[int, int]:
    """Return the lines that hold a docstring, or an empty range where one belongs."""
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        assert first.end_lineno is not None
        return first.lineno - 1, first.end_lineno
    begin = min([first.lineno, *(one.lineno for one in getattr(first, "decorator_list", []))]) - 1
    return begin, begin


def _is_end(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Return True if a definition consists of its docstring."""
    return len(node.body) == 1 and ast.get_docstring(node) is not None
