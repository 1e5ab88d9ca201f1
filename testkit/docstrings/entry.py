# SPDX-License-Identifier: Apache-2.0
"""One entry of the table, and the docstring that it makes for a function or class."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from string import Template

_WIDTH = 120


@dataclass(frozen=True)
class Entry:
    """Text of one public name. `$tensor` and other words of `words.py` stand for those of each framework.

    Args:
        summary: The first line.
        about: Paragraphs below it.
        args: Text for each argument that needs another one than `arguments.py` has for its name.
        returns: What the function returns; empty for None and for classes.
        raises: When each exception is raised.
        example: Lines of the example, without `>>>`.
    """

    summary: str
    about: str = ""
    args: Mapping[str, str] = field(default_factory=dict)
    returns: str = ""
    raises: Mapping[str, str] = field(default_factory=dict)
    example: str = ""

    def but(self, summary: str = "", about: str = "", returns: str = "", example: str = "", **args: str) -> Entry:
        """Return a copy with other texts; `args` are added to those that the entry has."""
        return replace(
            self,
            summary=summary or self.summary,
            about=about or self.about,
            args={**self.args, **args},
            returns=returns or self.returns,
            example=example or self.example,
        )

    def raising(self, **raises: str) -> Entry:
        """Return a copy with more exceptions; an empty text removes one."""
        return replace(self, raises={name: text for name, text in {**self.raises, **raises}.items() if text})


def parameters(node: ast.FunctionDef | ast.ClassDef, is_method: bool = False) -> list[str]:
    """Return the arguments of a function, or the fields of a data class; nothing for any other class."""
    if isinstance(node, ast.FunctionDef):
        arguments = node.args
        names = [one.arg for one in (*arguments.posonlyargs, *arguments.args)][is_method:]
        names += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
        names += [one.arg for one in arguments.kwonlyargs]
        return names + ([f"**{arguments.kwarg.arg}"] if arguments.kwarg else [])
    fields = [one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
    return fields if any("dataclass" in ast.unparse(one) for one in node.decorator_list) else []


def docstring(entry: Entry, names: list[str], shared: Mapping[str, str], words: Mapping[str, str], column: int) -> str:
    """Return the lines of a docstring's literal, indented to a column. Raise ValueError if the entry does not fit."""
    width = _WIDTH - column
    unknown = set(entry.args) - {name.lstrip("*") for name in names}
    if unknown:
        raise ValueError(f"the table describes arguments that do not exist: {sorted(unknown)}")

    def filled(text: str) -> str:
        return Template(text).substitute(words)

    parts = [filled(entry.summary)]
    parts += [_wrapped(part, width) for part in filled(entry.about).split("\n\n") if part]
    texts = {name: entry.args.get(name.lstrip("*")) or shared.get(name.lstrip("*")) for name in names}
    if missing := [name for name, text in texts.items() if not text]:
        raise ValueError(f"the table has no text for the arguments {missing}")
    described = {name: filled(text or "") for name, text in texts.items()}
    parts += _items("Args", described, width) + _prose("Returns", filled(entry.returns), width)
    parts += _items("Raises", {name: filled(text) for name, text in entry.raises.items()}, width)
    if entry.example:
        parts.append("Example:\n" + "\n".join(map(_prompted, filled(entry.example).strip().splitlines())))
    text = '"""' + "\n\n".join(parts)
    text += '"""' if len(parts) == 1 else '\n"""'
    if "\\" in text or text.count('"""') != 2 or max(map(len, text.splitlines())) > width:
        raise ValueError(f"the table holds a backslash, quotes that end a literal, or a line that is too long: {text}")
    return textwrap.indent(text, " " * column, lambda line: bool(line.strip())) + "\n"


def _prompted(line: str) -> str:
    return f"    {'...' if line.startswith(' ') else '>>>'} {line}"


def _items(title: str, items: Mapping[str, str], width: int) -> list[str]:
    wrapped = [_wrapped(f"{name}: {text}", width, " " * 4, " " * 8) for name, text in items.items()]
    return ["\n".join([f"{title}:", *wrapped])] if items else []


def _prose(title: str, text: str, width: int) -> list[str]:
    return [f"{title}:\n{_wrapped(text, width, ' ' * 4, ' ' * 4)}"] if text else []


def _wrapped(text: str, width: int, first: str = "", others: str = "") -> str:
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)
