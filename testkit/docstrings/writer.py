# SPDX-License-Identifier: Apache-2.0
"""Find the definitions of public names, and put the docstrings of the table where theirs are."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs" / "site"))

from api_names import Found, Sources

from testkit.docstrings.entry import Entry, docstring, parameters
from testkit.docstrings.tables import ARGUMENTS, INNER, METHODS, MODULES, NAMES, TABLES
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
            raise SystemExit(f"testkit/docstrings, {self.public}: {error}") from error


@dataclass(frozen=True)
class Definition:
    """A public function, class or method.

    Args:
        module: The public module.
        name: Its name there; for a method with the class that defines it.
        api: The table that has its entry.
        path: The file that defines it.
        node: The definition.
        names: Its arguments, without `self`.
    """

    module: str
    name: str
    api: str
    path: Path
    node: ast.FunctionDef | ast.ClassDef
    names: list[str]


def definitions(root: Path = SOURCES) -> Iterator[Definition]:
    """Yield each public function and class once."""
    sources = Sources(root)
    seen: set[tuple[Path, int]] = set()
    for module, api in MODULES.items():
        for name in NAMES.get(module) or sources.public(module):
            found = _found(sources, module, name)
            if found is None or not isinstance(found.node, (ast.FunctionDef, ast.ClassDef)):
                continue
            path = sources.path(found.module)
            assert path is not None
            if (path, found.node.lineno) not in seen:
                seen.add((path, found.node.lineno))
                yield Definition(module, name, api, path, found.node, _arguments(sources, found))
            if isinstance(found.node, ast.ClassDef):
                for one in _methods(sources, found, module, api):
                    if (one.path, one.node.lineno) not in seen:
                        seen.add((one.path, one.node.lineno))
                        yield one


def _methods(sources: Sources, owner: Found, module: str, api: str) -> Iterator[Definition]:
    """Yield the methods of a class, and of the classes that it inherits from, that the table names."""
    for method, found_in in sources.methods(owner).items():
        for class_name, found in found_in:
            table = "shared" if found.module.startswith("horovod.common.") else api
            name, path = f"{class_name}.{method}", sources.path(found.module)
            assert isinstance(found.node, ast.FunctionDef)
            assert path is not None
            if entry_of(table, name) is not None:
                yield Definition(module, name, table, path, found.node, parameters(found.node, found.is_method))


def entry_of(api: str, name: str) -> Entry | None:
    """Return the text of a name in an API, or else its text for all APIs."""
    tables = (TABLES[api], METHODS.get(api, {}), TABLES["shared"], METHODS["shared"])
    return next((table[name] for table in tables if name in table), None)


def _found(sources: Sources, module: str, name: str) -> Found | None:
    """Return where a public name is defined; that may be inside of a function."""
    inner = INNER.get((module, name))
    return Found(inner[0], _inner(sources.tree(inner[0]), inner[1])) if inner else sources.find(module, name)


def _arguments(sources: Sources, found: Found) -> list[str]:
    """Return the arguments of a function, or of a class; its `__init__` may be that of a base class."""
    assert isinstance(found.node, (ast.FunctionDef, ast.ClassDef))
    start = sources.member(found, "__init__") if isinstance(found.node, ast.ClassDef) else None
    if start is not None and isinstance(start.node, ast.FunctionDef):
        return parameters(start.node, is_method=True)
    return parameters(found.node, found.is_method)


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
    made = []
    for one in definitions(root):
        entry = entry_of(one.api, one.name)
        if entry is not None:
            made.append(Target(f"{one.module}.{one.name}", one.api, one.path, one.node, one.names, entry))
    return made


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
