# SPDX-License-Identifier: Apache-2.0
"""Parser of horovodrun's YAML file: flag values by the dotted keys of the table of settings.

Errors name the file and the line. A bad value is an error; an unknown key is only a warning, because files written for
Horovod may contain some.

Values are parsed from their text in the file, by the rules for environment variables. So YAML's own number formats
(octal, base 60) do not apply, and an alias cannot expand a small file into a huge value.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from horovod.common.settings_table import Setting, Value
from horovod.common.settings_values import refusal, shown
from horovod.launcher.arguments import is_negative, parsed
from horovod.launcher.options import FLAG_SETTINGS

if TYPE_CHECKING:
    import yaml

_CONTROLLERS = ("gloo", "mpi")
_DEST_BY_KEY = {setting.yaml_key or "": dest for dest, setting in FLAG_SETTINGS.items()}
_LARGEST_FILE = 1 << 20  # bytes
_LONGEST_REASON = 300  # characters; a reason may quote the file
_MOST_UNKNOWN = 20  # unknown keys that are named
_TAG = "tag:yaml.org,2002:"
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_TEXTS = tuple(_TAG + kind for kind in ("str", "int", "float", "timestamp"))


Warn = Callable[[str], object]


def read_config_file(path: str, warn: Warn) -> dict[str, Any]:
    """Return the values in the file by flag name.

    Args:
        warn: Receives one text for each unknown key.

    Raises:
        ValueError: The file or one of its values is not valid.
    """
    root = _parse_yaml(_read_text(path), path)
    return _read_root(root, path, warn) if root is not None else {}


def _read_text(path: str) -> str:
    with open(path, "rb") as file:
        data = file.read(_LARGEST_FILE + 1)
    if len(data) > _LARGEST_FILE:
        raise ValueError(f"{path}: this is not a config file: it has more than {_LARGEST_FILE} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{line}: not UTF-8 text: {error.reason}") from None


def _parse_yaml(text: str, path: str) -> yaml.Node | None:
    """Return the root node of the document, or None if it is empty."""
    import yaml

    try:
        loader = yaml.SafeLoader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position)
        raise ValueError(f"{path}:{line + 1}: not valid YAML: {error.reason} ({error.character:#06x})") from None
    try:
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        line, why = error.problem_mark.line if error.problem_mark is not None else 0, str(error.problem)
    except RecursionError:
        line, why = loader.line, "nested too deeply: only two levels of keys are known"
    except (ValueError, OverflowError) as error:  # raised by PyYAML for characters and YAML versions that do not exist
        line, why = loader.line, str(error)
    raise ValueError(f"{path}:{line + 1}: not valid YAML: {why[:_LONGEST_REASON]}")


def _read_root(root: yaml.Node, path: str, warn: Warn) -> dict[str, Any]:
    values: dict[str, Any] = {}
    unknown: list[tuple[str, list[str], str]] = []
    for section, node, where in _entries(root, path):
        if section == "controller":
            values.update(_controller(node, where))
        elif any(key.startswith(f"{section}.") for key in _DEST_BY_KEY):
            for name, value_node, value_where in _entries(node, path):
                key = f"{section}.{name}"
                if key in _DEST_BY_KEY:
                    _store(values, key, value_node, value_where)
                else:
                    unknown.append((key, list(_DEST_BY_KEY), value_where))
        else:
            sections = sorted({key.partition(".")[0] for key in _DEST_BY_KEY} | {"controller"})
            unknown.append((section, sections, where))
    for one in unknown[:_MOST_UNKNOWN]:
        warn(_unknown(*one))
    if len(unknown) > _MOST_UNKNOWN:
        warn(f"{path}: {len(unknown) - _MOST_UNKNOWN} more unknown keys are ignored")
    return values


def _entries(node: yaml.Node, path: str) -> list[tuple[str, yaml.Node, str]]:
    """Return (key, value, "file:line") for each entry of a mapping."""
    import yaml

    where = f"{path}:{node.start_mark.line + 1}"
    if _is_nothing(node):
        return []  # an empty section
    if not isinstance(node, yaml.MappingNode):
        raise ValueError(f"{where}: expected 'key: value' lines here")
    entries: list[tuple[str, yaml.Node, str]] = []
    seen = set()
    for key_node, value in node.value:
        where = f"{path}:{key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise ValueError(f"{where}: a key must be a word, not {_text(key_node)}")
        key = str(key_node.value)
        if key in seen:
            raise ValueError(f"{where}: {shown(key)} is given twice")
        seen.add(key)
        entries.append((key, value, where))
    return entries


def _controller(node: yaml.Node, where: str) -> dict[str, Any]:
    value = _text(node)
    if value not in _CONTROLLERS:
        raise ValueError(f"{where}: controller must be one of {', '.join(_CONTROLLERS)}, not {shown(_text(node))}")
    return {"use_gloo" if value == "gloo" else "use_mpi": True}


def _store(values: dict[str, Any], key: str, node: yaml.Node, where: str) -> None:
    dest = _DEST_BY_KEY[key]
    setting = FLAG_SETTINGS[dest].given_as(key)
    if _is_nothing(node) or (setting.type is str and node.value == ""):
        return
    try:
        value = _value(setting, node)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    negative = setting.type is bool and is_negative(setting.flag or "")
    values[dest] = not value if negative else value


def _value(setting: Setting, node: yaml.Node) -> Value:
    if setting.type is bool:
        given = _FLAGS.get(_text(node).lower()) if node.tag == _TAG + "bool" else None
        if given is None:
            raise refusal(setting, _text(node), "true or false")
        return given
    if not isinstance(node.value, str) or node.tag not in _TEXTS:
        raise refusal(setting, _text(node))
    return parsed(setting, node.value)


def _is_nothing(node: yaml.Node) -> bool:
    return node.tag == _TAG + "null" and _text(node).lower() in ("", "~", "null")


def _text(node: yaml.Node) -> str:
    """Return the text of a scalar, and a fixed phrase for any other node, because aliases may make its text endless."""
    return node.value if isinstance(node.value, str) else "a list or a mapping"


def _unknown(key: str, known: list[str], where: str) -> str:
    key = key[:200]
    names = {name.rpartition(".")[2]: name for name in known}
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5) or [
        names[name] for name in difflib.get_close_matches(key.rpartition(".")[2], names, n=1, cutoff=0.5)
    ]
    hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
    return f"{where}: unknown key {key!r} is ignored; {hint}"
