# SPDX-License-Identifier: Apache-2.0
"""Check of Horovod's public names: compare what is found with data/*_api.json; additional parameters are allowed."""

import inspect
import json
from pathlib import Path
from typing import Any


def contract_of(door: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the facts about the API of a framework, by module and name."""
    facts: dict[str, dict[str, dict[str, Any]]] = json.loads(
        (Path(__file__).parent / "unit" / "data" / f"{door}_api.json").read_text(encoding="utf-8")
    )
    return facts


def check(found: Any, fact: dict[str, Any], where: str) -> None:
    if "value" in fact:
        assert found == fact["value"], where
    if "signature" in fact:
        _check_signature(found, fact["signature"], where)
    for method, wanted in fact.get("methods", {}).items():
        _check_signature(getattr(found, method), wanted, f"{where}.{method}")
    for attribute in fact.get("attributes", ()):
        assert hasattr(found, attribute), f"{where}.{attribute} is missing"
    if "bases" in fact:
        assert {base.__name__ for base in found.__mro__} >= set(fact["bases"]), where


def _check_signature(function: Any, wanted: list[list[str]], where: str) -> None:
    """Compare the parameters with [kind, name] or [kind, name, default], in order; additional ones must be optional."""
    parameters = [each for each in inspect.signature(function).parameters.values() if each.name != "self"]
    for parameter, (kind, name, *default) in zip(parameters, wanted, strict=False):
        if parameter.kind.name == kind == "VAR_POSITIONAL":
            continue
        assert (parameter.name, parameter.kind.name) == (name, kind), where
        assert (parameter.default is not parameter.empty) == bool(default), f"{where}: {name}"
        if default:
            assert _shown(parameter.default) == default[0], f"{where}: {name}"
    assert len(parameters) >= len(wanted), f"{where}: {wanted[len(parameters) :]} are missing"
    for parameter in parameters[len(wanted) :]:
        optional = parameter.default is not parameter.empty
        assert optional or parameter.kind.name.startswith("VAR"), f"{where}: {parameter} is not passed"


def _shown(default: Any) -> str:
    """Return a default in the notation of the data files."""
    named = {"NoneCompressor": "Compression.none", "ProcessSet": "global_process_set"}
    name = getattr(default, "__name__", None) or type(default).__name__
    return named.get(name, repr(default))
