# SPDX-License-Identifier: Apache-2.0
"""Tokenizer for C++, as far as mutants and the check of prose need it: tokens with position, brackets, statements.

The tokens leave out comments, preprocessor lines and everything between #if and #endif, which may be for another
processor. The sources are formatted by clang-format, so spaces distinguish `a < b` and `a * b` from `vector<int>` and
`int* a`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""
    (?P<directive>(?<![^\n])[^\S\n]*\#(?:\\\n|[^\n])*)
  | (?P<space>\n|[^\S\n]+)
  | (?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<string>(?:u8|[uUL])?(?:R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"))
  | (?P<character>'(?:\\.|[^'\\\n])+')
  | (?P<number>\.?\d(?:[eEpP][+-]|'(?=\w)|[\w.])*)
  | (?P<name>[A-Za-z_]\w*)
  | (?P<sign><<=|>>=|\.\.\.|->\*?|::|\+\+|--|&&|\|\||<<|>>|[-+*/%&|^=<>!]=|[^\w\s])
    """,
    re.VERBOSE | re.DOTALL,
)
_OPENING, _CLOSING = "([{", ")]}"
_SCOPES = {"class", "struct", "union", "enum", "namespace"}
# Tokens after the } of an initialiser, whose statement goes on; after the } of a block a new statement begins.
_GOES_ON = {
    ";",
    ",",
    ")",
    "]",
    "}",
    ".",
    "->",
    "(",
    "[",
    "?",
    ":",
    "+",
    "-",
    "*",
    "/",
    "<",
    ">",
    "==",
    "!=",
    "&&",
    "||",
}


@dataclass(eq=False)
class Group:
    """Statement, or the contents of a pair of brackets."""

    parent: Group | None
    opener: str = ""  # "(" or "["; empty for a statement
    callee: tuple[str, ...] = ()  # the last tokens before the bracket
    tokens: list[Token] = field(default_factory=list)  # tokens of this group, without those of nested groups
    has_text: bool = False  # True if the group directly contains a string literal
    in_code: bool = False  # True for a statement in a function's body, False for a declaration in a class or namespace

    def around(self) -> Iterator[Group]:
        """Yield this group and all enclosing groups, the innermost first."""
        group: Group | None = self
        while group is not None:
            yield group
            group = group.parent


@dataclass(eq=False)
class Token:
    """Token with its position. `line` counts from 1, `column` from 0."""

    kind: str
    text: str
    line: int
    column: int
    is_spaced: bool  # True if blanks or line ends are on both sides
    group: Group = field(default_factory=lambda: Group(None))


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a file, each in its group."""
    tokens = list(_plain_tokens(text))
    _put_into_groups(tokens)
    return tokens


def comments_of(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the line, counted from 1, the column and the text of each comment, also between #if and #endif."""
    line, line_start = 1, 0
    for match in _TOKEN.finditer(text):
        if match.lastgroup == "comment":
            yield line, match.start() - line_start, match[0]
        ends = match[0].count("\n")
        if ends:
            line, line_start = line + ends, match.start() + match[0].rindex("\n") + 1


def _plain_tokens(text: str) -> Iterator[Token]:
    line, line_start, conditions = 1, 0, 0
    for match in _TOKEN.finditer(text):
        kind, found = str(match.lastgroup), match[0]
        if kind == "directive":
            word = found.strip().lstrip("#").strip()
            conditions += word.startswith("if") - word.startswith("endif")
        elif kind not in ("space", "comment") and conditions == 0:
            before, after = text[match.start() - 1 : match.start()], text[match.end() : match.end() + 1]
            is_spaced = (before.isspace() or not before) and (after.isspace() or not after)
            yield Token(kind, found, line, match.start() - line_start, is_spaced)
        ends = found.count("\n")
        if ends:
            line, line_start = line + ends, match.start() + found.rindex("\n") + 1


def _put_into_groups(tokens: list[Token]) -> None:
    """Set each token's group. A bracket belongs to the group outside it."""
    scope_is_code = [False]
    group = Group(None)
    openers: list[Group] = []
    for index, token in enumerate(tokens):
        if token.text in _CLOSING and openers and token.kind == "sign":
            group = openers.pop()
            if token.text == "}":
                scope_is_code.pop()
        token.group = group
        group.tokens.append(token)
        group.has_text |= token.kind == "string"
        if token.kind != "sign":
            continue
        if token.text in _OPENING:
            openers.append(group)
            callee = tuple(before.text for before in tokens[max(0, index - 3) : index])
            if token.text == "{":
                scope_is_code.append(_opens_code(group))
                group = Group(group, in_code=scope_is_code[-1])
            else:
                group = Group(group, token.text, callee)
        elif _ends_statement(token, group, tokens[index + 1 : index + 2]):
            group = Group(group.parent, in_code=scope_is_code[-1])


def _opens_code(statement: Group) -> bool:
    """Return True if the { that ends these tokens opens a block of code instead of a class or a namespace."""
    return not any(token.text in _SCOPES for token in statement.tokens)


def _ends_statement(token: Token, group: Group, following: list[Token]) -> bool:
    if group.opener:
        return False  # for (a; b; c), or a lambda among arguments
    if token.text == ";":
        return True
    return token.text == "}" and bool(following) and following[0].text not in _GOES_ON
