# SPDX-License-Identifier: Apache-2.0
"""Rules of wording that a program can check. They are a floor: a passage that keeps them may still be unclear."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
EXCEPTIONS = _FOLDER / "name_exceptions.txt"

# Beginnings of passages that make sense only after something else, or that name no actor.
_BEGINNING = re.compile(r"(likewise|the same|as above|of|for what|who|whether)\b", re.IGNORECASE)
_WORDS = re.compile(r"\b(whoever|nobody|somebody|for ever|all the same|of its own accord)\b", re.IGNORECASE)
_QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"")
# Names that the standard libraries, NumPy or a protocol have given a meaning.
_STANDARD = frozenset({"all", "any", "at", "empty", "full", "lowest", "next", "now", "ready", "round", "valid"})


def faults_of_passage(text: str) -> list[str]:
    """Return what is wrong with a comment or docstring. Text in quotes or backticks may contain any word."""
    found = []
    if beginning := _BEGINNING.match(text):
        found.append(f"begins with {beginning[0]!r}: write a sentence that stands alone and names the actor")
    found += [f"contains {word!r}: use the field's words" for word in _WORDS.findall(_QUOTED.sub("", text))]
    return found


def fault_of_name(bare: str) -> str | None:
    """Return what is wrong with a method's name, or None."""
    word = bare.strip("_")
    is_special = word in _STANDARD or bare == f"__{word}__"
    if word.lower() in _vague_words() and not is_special:
        return "is no verb or noun: name what it does or returns"
    return None


@cache
def _vague_words() -> frozenset[str]:
    lines = (_FOLDER / "vague_names.txt").read_text().splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())


def excepted_names() -> list[str]:
    """Return the qualified names that may stay vague until they are renamed."""
    return [line for line in EXCEPTIONS.read_text().splitlines() if line and not line.startswith("#")]
