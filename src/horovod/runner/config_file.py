# SPDX-License-Identifier: Apache-2.0
"""horovodrun's YAML file: flag values by the dotted keys of the table of settings. Errors name file and line."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from horovod.runner.arguments import FLAG_SETTINGS, is_negative

if TYPE_CHECKING:
    import yaml

_CONTROLLERS = ("gloo", "mpi")
_DEST_BY_KEY = {setting.yaml_key: dest for dest, setting in FLAG_SETTINGS.items()}


def read_config_file(path: str) -> dict[str, Any]:
    """Values by flag name. ValueError for anything that the file should not hold."""
    import yaml

    try:
        with open(path, encoding="utf-8") as stream:
            loader = yaml.SafeLoader(stream)
            try:
                root = loader.get_single_node()
                return _read_root(loader, root, path) if root is not None else {}
            finally:
                loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        raise ValueError(f"{path}:{line}: not valid YAML: {error.problem}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text in UTF-8: {error.reason}") from None


def _read_root(loader: yaml.SafeLoader, root: yaml.Node, path: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for section, node, where in _entries(loader, root, path):
        if section == "controller":
            values.update(_controller(loader.construct_object(node), where))
        elif any(str(key).startswith(f"{section}.") for key in _DEST_BY_KEY):
            for name, value_node, value_where in _entries(loader, node, path):
                _store(values, f"{section}.{name}", loader.construct_object(value_node, deep=True), value_where)
        else:
            sections = sorted({str(key).partition(".")[0] for key in _DEST_BY_KEY} | {"controller"})
            raise _unknown(section, sections, where)
    return values


def _entries(loader: yaml.SafeLoader, node: yaml.Node, path: str) -> list[tuple[str, yaml.Node, str]]:
    """(key, value, file:line) of a mapping."""
    import yaml

    where = f"{path}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.ScalarNode) and loader.construct_object(node) is None:
        return []  # an empty section
    if not isinstance(node, yaml.MappingNode):
        raise ValueError(f"{where}: expected 'key: value' lines here")
    entries: list[tuple[str, yaml.Node, str]] = []
    seen = set()
    for key_node, value in node.value:
        where = f"{path}:{key_node.start_mark.line + 1}"
        key = str(key_node.value)
        if key in seen:
            raise ValueError(f"{where}: {key!r} is given twice")
        seen.add(key)
        entries.append((key, value, where))
    return entries


def _controller(value: object, where: str) -> dict[str, Any]:
    if value not in _CONTROLLERS:
        raise ValueError(f"{where}: controller must be one of {', '.join(_CONTROLLERS)}, not {value!r:.100}")
    return {"use_gloo" if value == "gloo" else "use_mpi": True}


def _store(values: dict[str, Any], key: str, value: object, where: str) -> None:
    dest = _DEST_BY_KEY.get(key)
    if dest is None:
        raise _unknown(key, [str(known) for known in _DEST_BY_KEY], where)
    setting = FLAG_SETTINGS[dest]
    if value is None:
        return
    if setting.type is bool:
        good = isinstance(value, bool)
    elif setting.type is str:
        good, value = not isinstance(value, (dict, list, bool)), str(value)
    else:
        good = isinstance(value, (int, float) if setting.type is float else int) and not isinstance(value, bool)
    if not good:
        expected = "true or false" if setting.type is bool else setting.accepted()
        raise ValueError(f"{where}: {key} must be {expected}, not {value!r:.100}")
    if setting.type is bool and is_negative(setting.flag or ""):
        value = not value
    values[dest] = value


def _unknown(key: str, known: list[str], where: str) -> ValueError:
    names = {name.rpartition(".")[2]: name for name in known}
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5) or [
        names[name] for name in difflib.get_close_matches(key.rpartition(".")[2], names, n=1, cutoff=0.5)
    ]
    hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
    return ValueError(f"{where}: unknown key {key[:200]!r}; {hint}")
