# SPDX-License-Identifier: Apache-2.0
"""Possible changes of a Python file. Annotations, decorators, imports, asserts and all texts are never changed."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from typing import TypeAlias

from testkit.mutants.change import Change, Edit, changes_of
from testkit.mutants.cpp_changes import MAX_CONSTANT

Place: TypeAlias = tuple[int, int]  # line from 1, column from 0
Swap: TypeAlias = "tuple[tuple[str, ...], tuple[str, ...]]"  # the tokens of an operator, and their replacements

_COMPARISONS: dict[type[ast.cmpop], Swap] = {
    ast.Lt: (("<",), ("<=", ">=")),
    ast.LtE: (("<=",), ("<", ">")),
    ast.Gt: ((">",), (">=", "<=")),
    ast.GtE: ((">=",), (">", "<")),
    ast.Eq: (("==",), ("!=",)),
    ast.NotEq: (("!=",), ("==",)),
    ast.Is: (("is",), ("is not",)),
    ast.IsNot: (("is", "not"), ("is",)),
    ast.In: (("in",), ("not in",)),
    ast.NotIn: (("not", "in"), ("in",)),
}
_ARITHMETIC: dict[type[ast.operator], Swap] = {
    ast.Add: (("+",), ("-",)),
    ast.Sub: (("-",), ("+",)),
    ast.Mult: (("*",), ("//",)),
    ast.Div: (("/",), ("*",)),
    ast.FloorDiv: (("//",), ("*",)),
    ast.Mod: (("%",), ("//",)),
    ast.BitAnd: (("&",), ("|",)),
    ast.BitOr: (("|",), ("&",)),
}
_BOOLEAN: dict[type[ast.boolop], Swap] = {ast.And: (("and",), ("or",)), ast.Or: (("or",), ("and",))}
_EXTREMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LOGS = {"critical", "debug", "error", "exception", "info", "log", "print", "warn", "warning"}


def changes_in(path: str, text: str) -> list[list[Change]]:
    """Return the changes to a Python file, one list for each line that can be changed."""
    return changes_of(path, text, _Finder(text).edits())


class _Finder:
    """Walk through a module's syntax tree, without the parts that are never changed."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._tree = ast.parse(text)
        self._tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.string.strip()]

    def edits(self) -> Iterator[Edit]:
        yield from self._in(self._tree, None)

    def _in(self, node: ast.AST, parent: ast.AST | None) -> Iterator[Edit]:
        if _is_untouched(node):
            return
        yield from self._of(node)
        if isinstance(node, ast.stmt):
            yield from self._deletion(node, parent)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self._in(child, node)

    def _of(self, node: ast.AST) -> Iterator[Edit]:
        if isinstance(node, ast.Compare):
            values = [node.left, *node.comparators]
            for op, left, right in zip(node.ops, values, values[1:], strict=False):
                yield from self._between(left, right, _COMPARISONS.get(type(op)))
        elif isinstance(node, ast.BoolOp):
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from self._between(left, right, _BOOLEAN[type(node.op)])
        elif isinstance(node, ast.BinOp) and not (_is_text(node.left) or _is_text(node.right)):
            yield from self._between(node.left, node.right, _ARITHMETIC.get(type(node.op)))
        elif isinstance(node, ast.AugAssign) and not _is_text(node.value):
            signs, texts = _ARITHMETIC.get(type(node.op), ((), ()))
            swap = (tuple(sign + "=" for sign in signs), tuple(text + "=" for text in texts))
            yield from self._between(node.target, node.value, swap)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            line, column = self._place(node.lineno, node.col_offset)
            yield Edit(line, column, column + len("not "), "", "negation")
        elif isinstance(node, ast.Constant):
            yield from self._constant(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _EXTREMES:
            line, column = self._place(node.func.lineno, node.func.col_offset)
            yield Edit(line, column, column + len(node.func.id), _EXTREMES[node.func.id], "extreme")

    def _constant(self, node: ast.Constant) -> Iterator[Edit]:
        line, column = self._place(node.lineno, node.col_offset)
        if isinstance(node.value, bool):
            yield Edit(line, column, column + len(str(node.value)), str(not node.value), "word")
        elif type(node.value) is int and abs(node.value) <= MAX_CONSTANT:
            end = self._place(node.end_lineno or 0, node.end_col_offset or 0)[1]
            yield from (Edit(line, column, end, str(node.value + step), "constant") for step in (1, -1))

    def _between(self, left: ast.expr, right: ast.expr, swap: Swap | None) -> Iterator[Edit]:
        """Yield the edits of an operator, which is found among the tokens between two expressions."""
        if swap is None:
            return
        words, texts = swap
        start = self._place(left.end_lineno or 0, left.end_col_offset or 0)
        end = self._place(right.lineno, right.col_offset)
        tokens = [token for token in self._tokens if start <= token.start and token.end <= end]
        found = [token for token in tokens if token.string in words]
        if len(found) == len(words) and found[0].start[0] == found[-1].end[0]:
            (line, column), last = found[0].start, found[-1].end[1]
            yield from (Edit(line, column, last, text, "operator") for text in texts)

    def _deletion(self, node: ast.stmt, parent: ast.AST | None) -> Iterator[Edit]:
        """Yield the edit that deletes a one-line statement, unless the deletion would leave a name undefined."""
        line = self._lines[node.lineno - 1]
        start = self._place(node.lineno, node.col_offset)[1]
        if node.end_lineno != node.lineno or line[:start].strip():
            return
        edit = Edit(node.lineno, start, self._place(node.lineno, node.end_col_offset or 0)[1], "pass", "deletion")
        if isinstance(node, ast.Break | ast.Continue):
            yield edit._replace(text="continue" if isinstance(node, ast.Break) else "break", operator="word")
            return
        is_guard = isinstance(node, ast.Return) and isinstance(parent, ast.If)
        if (
            is_guard
            or isinstance(node, ast.Expr | ast.AugAssign | ast.Raise | ast.Delete)
            or (
                isinstance(node, ast.Assign)
                and not any(isinstance(target, ast.Name | ast.Tuple) for target in node.targets)
            )
        ):
            yield edit

    def _place(self, line: int, offset: int) -> Place:
        """Return the position in characters, because ast counts bytes."""
        return line, len(self._lines[line - 1].encode()[:offset].decode())


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_untouched(node: ast.AST) -> bool:
    """Return True for imports, asserts, texts, log calls and the construction of exceptions."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert | ast.JoinedStr):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant | ast.Call):
        return isinstance(node.value, ast.Constant) or _name_of(node.value) in _LOGS
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name):
        return node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.Call) and _name_of(node).endswith(("Error", "Exception"))


def _name_of(call: ast.Call) -> str:
    function: ast.expr = call.func
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )
