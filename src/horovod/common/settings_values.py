# SPDX-License-Identifier: Apache-2.0
"""Parsing of settings. Every bad value gets an error with name, value, and accepted values.

Numbers are written in ASCII digits. Python's other forms (1_000, digits of other scripts, inf) are refused, because
other programs that read the variable may not accept them.
"""

from __future__ import annotations

import math
import os
import re

from horovod.common.settings_table import MOST_CORES, Setting, Value, plain

_INTEGER = re.compile(r"[+-]?[0-9]{1,100}", re.ASCII)
_NUMBER = re.compile(r"[+-]?([0-9]{1,100}\.?[0-9]{0,100}|\.[0-9]{1,100})([eE][+-]?[0-9]{1,9})?", re.ASCII)
_SHOWN = 100  # characters of a bad value that errors show
_MOST_DIGITS = 10  # digits of a core's number
_WORDS = {"1": ("true", "yes", "on", "y", "t"), "0": ("false", "no", "off", "n", "f")}


def parse(setting: Setting, text: str) -> Value:
    """Return the value of `text`. Raise ValueError with name, value, accepted values and the nearest accepted value."""
    value = (_text if setting.type is str else _number)(setting, text.strip())
    if value is None:
        raise refusal(setting, text)
    return value


def refusal(setting: Setting, text: str, accepted: str | None = None) -> ValueError:
    """Return the error for a bad value.

    Args:
        setting: The setting, under the name that the user has written.
        text: The bad value.
        accepted: Description of accepted values, if it differs from that for the environment.
    """
    near = _nearest(setting, text.strip()) if accepted is None else None
    hint = f"; the nearest is {near}" if near is not None else ""
    return ValueError(
        f"{setting.name}={shown(text)} is not valid: expected {accepted or setting.accepted()}{hint}. {setting.meaning}"
    )


def shown(text: str) -> str:
    """Return a text of unknown origin for an error message: quoted, on one line, and cut."""
    if len(text) <= _SHOWN:
        return repr(text)
    return f"{text[:_SHOWN]!r}... ({len(text)} characters)"


def is_integer(text: str) -> bool:
    return _INTEGER.fullmatch(text) is not None


def is_unicode(text: str) -> bool:
    """Return False if the text contains lone surrogates, which come from bytes that are not text.

    Other processes cannot decode such a text.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(setting: Setting, text: str) -> str | None:
    if setting.choices:
        return text if text.lower() in setting.choices else None
    if setting.numbers and not all(_is_core(part.strip()) for part in text.split(",")):
        return None
    if not setting.path:
        return text if text.isprintable() and 0 < len(text) <= setting.longest else None
    try:
        return text if "\0" not in text and 0 < len(os.fsencode(text)) <= setting.longest else None
    except UnicodeEncodeError:
        return None


def _is_core(text: str) -> bool:
    return len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit() and int(text) < MOST_CORES


def _number(setting: Setting, text: str) -> Value | None:
    if not (_NUMBER if setting.type is float else _INTEGER).fullmatch(text):
        return None
    if setting.type is bool:
        return int(text) > 0
    value = float(text) if setting.type is float else int(text)
    assert setting.minimum is not None, setting.name
    assert setting.maximum is not None, setting.name
    return value if setting.minimum <= value <= setting.maximum else None


def _nearest(setting: Setting, text: str) -> str | None:
    """Return a valid value that the user may have meant; None if there is no clear candidate."""
    text = text[:_SHOWN].lower() if setting.choices or setting.type is bool else text
    if setting.choices:
        import difflib

        return next(iter(difflib.get_close_matches(text, setting.choices, n=1)), None)
    if setting.type is bool:
        return next((digit for digit, words in _WORDS.items() if text in words), None)
    if setting.type is str:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    if math.isnan(number):
        return None
    assert setting.minimum is not None, setting.name
    assert setting.maximum is not None, setting.name
    clamped = min(max(number, setting.minimum), setting.maximum)
    return plain(round(clamped) if setting.type is int else clamped)
