# SPDX-License-Identifier: Apache-2.0
"""Comments, docstrings and names of methods in a source file of Python or C++."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import dataclass
from itertools import pairwise

from testkit.mutants.cpp_tokens import Group, Token, comments_of, tokens_of

# Comments that tools read.
_PRAGMA = re.compile(r"SPDX|!|noqa|type: ignore|fmt: |pragma|ruff: |mypy: |NOLINT|clang-format")
_TYPES = frozenset({"bool", "double", "float", "int", "void"})  # as in std::function<void()>
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Passage:
    """Comment or docstring as one line of text, with the number of its first line."""

    line: int
    text: str


@dataclass(frozen=True)
class Name:
    """Name of a method: qualified by its class ("Pool.lend"), and bare ("lend")."""

    line: int
    qualified: str
    bare: str


@dataclass(frozen=True)
class _Comment:
    line: int
    column: int
    text: str
    is_alone: bool  # True if no code precedes it on its line

    def continues(self, before: _Comment) -> bool:
        return self.is_alone and before.is_alone and (self.line, self.column) == (before.line + 1, before.column)


def python_passages(text: str) -> list[Passage]:
    """Return the comments and docstrings of a Python file."""
    comments = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            is_alone = not token.line[:column].strip()
            comments.append(_Comment(line, column, token.string.lstrip("#:").strip(), is_alone))
    docstrings = [
        Passage(node.body[0].lineno, " ".join(docstring.split()))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | _Definition) and (docstring := ast.get_docstring(node))
    ]
    return [*_joined(comments), *docstrings]


def cpp_passages(text: str) -> list[Passage]:
    """Return the comments of a C++ file."""
    lines = text.splitlines()
    return _joined(
        [
            _Comment(line, column, found.strip("/*< \n"), not lines[line - 1][:column].strip())
            for line, column, found in comments_of(text)
        ]
    )


def _joined(comments: list[_Comment]) -> list[Passage]:
    """Return comments on consecutive lines as one passage each."""
    comments = [comment for comment in comments if not _PRAGMA.match(comment.text)]
    starts = [0, *(index + 1 for index, (one, two) in enumerate(pairwise(comments)) if not two.continues(one))]
    blocks = [comments[start:end] for start, end in pairwise([*starts, len(comments)])]
    return [Passage(block[0].line, " ".join(part.text for part in block)) for block in blocks if block]


def python_methods(text: str) -> list[Name]:
    """Return the names of the methods that a Python file defines."""
    return [
        Name(function.lineno, f"{node.name}.{function.name}", function.name)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
        for function in node.body
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def cpp_methods(text: str) -> list[Name]:
    """Return the names of the methods that a C++ file declares or defines, without constructors."""
    found: dict[Group, Name] = {}
    for before, token in pairwise(tokens_of(text)):
        statement = token.group
        is_declaration = not (statement.in_code or statement.opener or statement in found or before.text in _TYPES)
        if is_declaration and token.text == "(" and before.kind == "name" and (owner := _class_of(statement, before)):
            found[statement] = Name(before.line, f"{owner}::{before.text}", before.text)
    return [name for name in found.values() if name.qualified != f"{name.bare}::{name.bare}"]


def _class_of(statement: Group, name: Token) -> str | None:
    """Return the class that a declaration is in, or that its definition names."""
    earlier = [token.text for token in statement.tokens[: statement.tokens.index(name)]]
    if earlier[-1:] == ["::"]:
        return earlier[-2]
    outer = [token.text for token in statement.parent.tokens] if statement.parent else []
    for before, keyword, found in zip(["", *outer], outer, outer[1:], strict=False):
        is_parameter = before in ("<", ",")  # like E in template <class E>
        if keyword in ("class", "struct") and found.isidentifier() and not is_parameter:
            return found
    return None
