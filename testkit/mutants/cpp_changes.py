# SPDX-License-Identifier: Apache-2.0
"""Possible changes of a C++ file. Texts for users, log calls, memory orders and static_assert are never changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from testkit.mutants.change import Change, Edit, changes_of
from testkit.mutants.cpp_tokens import Group, Token, tokens_of

# Binary operators and their replacements.
_SWAPS = {
    "<": ("<=", ">="),
    "<=": ("<", ">"),
    ">": (">=", "<="),
    ">=": (">", "<"),
    "==": ("!=",),
    "!=": ("==",),
    "&&": ("||",),
    "||": ("&&",),
    "+": ("-",),
    "-": ("+",),
    "*": ("/",),
    "/": ("*",),
    "%": ("/",),
    "&": ("|",),
    "|": ("&",),
    "<<": (">>",),
    ">>": ("<<",),
    "+=": ("-=",),
    "-=": ("+=",),
    "|=": ("&=",),
    "&=": ("|=",),
}
_STEPS = {"++": "--", "--": "++"}
_WORDS = {"true": "false", "false": "true", "break": "continue", "continue": "break"}
_EXTREMES = {"min": "max", "max": "min"}
_LOGS = {"log", "log_"}
_UNTOUCHED_CALLS = {"static_assert", "alignas", "noexcept", "explicit"}
# Larger numbers are amounts (bytes, iterations of a spin loop); changing them by one is no mistake.
MAX_CONSTANT = 64
_DURATIONS = {"chrono", "seconds", "milliseconds", "microseconds", "nanoseconds"}
_UNITS = {"10", "20", "30"}  # after <<: KiB, MiB, GiB
# Lines about GPUs and MPI in other files are not changed, because no judge has a GPU or an MPI library.
_OUT_OF_REACH = re.compile(r"device|gpu|nccl|cuda|foreign", re.IGNORECASE)
_INTEGER = re.compile(r"(0[xX][0-9a-fA-F']+|[0-9][0-9']*)([uUlLzZ]*)")
# Statements that begin with one of these are not deleted: they are declarations or parts of larger statements.
_KEPT = {
    *("alignas", "auto", "break", "case", "class", "const", "constexpr", "continue", "default", "delete", "do", "else"),
    *("enum", "explicit", "extern", "for", "friend", "goto", "inline", "namespace", "operator", "private", "protected"),
    *(
        "public",
        "return",
        "static",
        "static_assert",
        "struct",
        "switch",
        "template",
        "throw",
        "try",
        "typedef",
        "union",
    ),
    *("using", "virtual", "void", "while"),
}


def changes_in(path: str, text: str) -> list[list[Change]]:
    """Return the changes to a C++ file, one list for each line that can be changed."""
    tokens = tokens_of(text)
    unreachable = {token.line for token in tokens if token.kind == "name" and _OUT_OF_REACH.search(token.text)}
    edits = (edit for edit in (*_edits_of_tokens(tokens), *_deletions(tokens)) if edit.line not in unreachable)
    return changes_of(path, text, edits)


def _edits_of_tokens(tokens: Sequence[Token]) -> Iterator[Edit]:
    for index, token in enumerate(tokens):
        before = tokens[index - 1] if index else None
        after = tokens[index + 1] if index + 1 < len(tokens) else None
        if before is None or after is None or token.kind == "string" or _is_untouched(token.group):
            continue
        for text, operator in _replacements(tokens, index, before, after):
            yield Edit(token.line, token.column, token.column + len(token.text), text, operator)


def _replacements(tokens: Sequence[Token], index: int, before: Token, after: Token) -> Iterator[tuple[str, str]]:
    token = tokens[index]
    if token.kind == "sign":
        if token.is_spaced and token.text in _SWAPS and before.text != "operator":
            yield from ((text, "operator") for text in _SWAPS[token.text])
        elif token.text in _STEPS and before.text != "operator":
            yield _STEPS[token.text], "step"
        elif token.text == "!" and (after.kind == "name" or after.text == "("):
            yield "", "negation"
    elif token.kind == "name":
        if token.text in _WORDS:
            yield _WORDS[token.text], "word"
        elif token.text in _EXTREMES and [part.text for part in tokens[index - 2 : index]] == ["std", "::"]:
            yield _EXTREMES[token.text], "extreme"
    elif token.kind == "number" and not _is_amount(token, before, tokens, index):
        yield from ((text, "constant") for text in _neighbours(token.text))


def _neighbours(number: str) -> list[str]:
    """Return this integer plus and minus one, with its suffix; nothing for a float."""
    match = _INTEGER.fullmatch(number)
    if match is None:
        return []
    digits = match[1].replace("'", "")
    if digits[:2].lower() == "0x":
        return [f"0x{int(digits, 16) + step:x}{match[2]}" for step in (1, -1) if int(digits, 16) + step >= 0]
    if int(digits) > MAX_CONSTANT:
        return []
    return [f"{int(digits) + step}{match[2]}" for step in (1, -1) if int(digits) + step >= 0]


def _is_amount(token: Token, before: Token, tokens: Sequence[Token], index: int) -> bool:
    """Return True for a number whose change by one is no mistake, or none that a test can notice.

    These are durations, KiB and MiB, the sizes of local arrays, the numbers of enumerators, and the 0 of a pure virtual
    function.
    """
    if any(
        part.text in _DURATIONS for group in token.group.around() for part in group.tokens if part.line == token.line
    ):
        return True
    if before.text == "=" and tokens[index - 2].text in (")", "const", "override"):
        return True
    scope = token.group.parent
    if scope is not None and not token.group.opener and any(part.text == "enum" for part in scope.tokens):
        return True
    following = [part.text for part in tokens[index + 1 : index + 4]]
    if (before.text == "<<" and token.text in _UNITS) or (following[:2] == ["}", "<<"] and following[2] in _UNITS):
        return True
    return before.text == "[" and index > 2 and tokens[index - 3].kind == "name"


def _is_untouched(group: Group) -> bool:
    """Return True for tokens in a text for users, a log call or a check by the compiler."""
    return any(
        around.has_text or _is_log(around) or _UNTOUCHED_CALLS & {*around.callee[-1:]} for around in group.around()
    )


def _is_log(group: Group) -> bool:
    return (
        group.opener == "(" and len(group.callee) == 3 and group.callee[0] in _LOGS and group.callee[1] in (".", "->")
    )


def _deletions(tokens: Sequence[Token]) -> Iterator[Edit]:
    """Yield an edit for each line that is exactly one call, one assignment, or one if with its statement."""
    by_line: dict[int, list[Token]] = {}
    for token in tokens:
        by_line.setdefault(token.line, []).append(token)
    firsts = {id(token.group.tokens[0]) for token in tokens}
    followers = {id(token): after.text for token, after in pairwise(tokens)}
    for line, found in by_line.items():
        statement = found[0].group
        is_whole = id(found[0]) in firsts and found[-1] is statement.tokens[-1] and found[-1].text == ";"
        if not is_whole or not statement.in_code or statement.opener:
            continue
        if any(token.text in "{}" for token in found) or any(_is_log(token.group) for token in found):
            continue
        is_guard = found[0].text == "if" and followers.get(id(found[-1])) != "else"
        if is_guard or _is_expression(statement.tokens):
            end = found[-1].column + 1
            yield Edit(line, found[0].column, end, ";", "deletion")


def _is_expression(tokens: Sequence[Token]) -> bool:
    """Return True for a call, an assignment or an increment; False for a declaration."""
    first = tokens[0]
    if first.text in _KEPT or first.text == "if" or not (first.kind == "name" or first.text in ("++", "--", "*", "(")):
        return False
    for before, after in pairwise(tokens):
        if before.text in ("=", "("):
            break
        if after.kind == "name" and (
            before.kind == "name" or (before.text in (">", ">>", "&", "*") and before is not first)
        ):
            return False
    return len(tokens) > 2
