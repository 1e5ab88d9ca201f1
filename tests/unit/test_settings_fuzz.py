# SPDX-License-Identifier: Apache-2.0
"""Fault 30, for every setting: a value is accepted if it is in the range, or refused with name, value and range.

Flags, keys of the config file, rank assignments and hosts are tested too. HVD_SETTINGS_EXAMPLES=10000 runs more
examples.
"""

import json
import math
import os
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from horovod.common import settings
from horovod.common.settings_table import MOST_CORES, TABLE, Setting
from horovod.common.topology import discover
from horovod.launcher.config_file import read_config_file
from horovod.launcher.launch import parse_args
from horovod.launcher.options import FLAG_SETTINGS, JobOptions
from horovod.launcher.start.hosts import parse_hosts
from horovod.launcher.start.worker_environment import flag_environment

USUAL = 400
EXAMPLES = int(os.environ.get("HVD_SETTINGS_EXAMPLES", USUAL))
thorough = hypothesis_settings(max_examples=EXAMPLES, derandomize=EXAMPLES == USUAL, deadline=None)
briefly = hypothesis_settings(thorough, max_examples=EXAMPLES // 4)

ODD = (
    *("", " ", "-0", "+0", "-0.0", "nan", "-nan", "inf", "-inf", "infinity", "1e300", "1e-300", "1e999999999", "0x10"),
    *("0b1", "0o7", "1_000", "1,5", "1.", ".5", ".", "e5", "--1", "1e", "\u0661\u0662", "\u00bd", "\u2460", "1\u00a0"),
    *("9" * 20, "9" * 5000, "0" * 10_000, "-" + "9" * 400, "1e" + "9" * 400, "a" * 10_000, "true", "yes", "none"),
    *("\0", "1\0", "a\0b", "\ud800", "\udcff", "/tmp/\udcff", "\n", "1\n2", "$(reboot)", "; rm -rf /", "../" * 2000),
    *(str(2**power + more) for power in (7, 8, 15, 16, 31, 32, 53, 63, 64, 127) for more in (-1, 0, 1)),
)
# A small alphabet, because Hypothesis takes seconds to build its default table of all characters.
CHARACTERS = "aZz059 .,:;-_+/\\\"'$%&#@!*|>[]{}~\n\t\0\x1b\x7f\u00e9\u00bd\u0661\u2028\ud800\udcff\U0001d7d8"
YAML_VALUES = ("[1]", "{a: 1}", "&a [*a]", "*a", "!!set {}", "!!int x", "!!binary x", "!x 1", "|\n  1", "1 # one", "'")
WITH_FLAG = list(FLAG_SETTINGS.items())
NUMBERS = (int, float)


def good(setting: Setting) -> st.SearchStrategy[str]:
    """Return a strategy of valid values; Hypothesis prefers the extremes."""
    if setting.type is bool:
        return st.sampled_from(["0", "1", "-1", "2", "9" * 30])
    if setting.choices:
        return st.sampled_from(setting.choices)
    if setting.numbers:
        return st.lists(st.integers(0, MOST_CORES - 1), min_size=1, max_size=20).map(
            lambda them: ",".join(map(str, them))
        )
    if setting.type is int:
        return st.integers(int(setting.minimum), int(setting.maximum)).map(str)
    if setting.type is float:
        return st.floats(setting.minimum, setting.maximum).map(repr)
    return st.text("abc/.é ", min_size=1, max_size=setting.longest // 4).filter(str.strip)


def anything(setting: Setting) -> st.SearchStrategy[str]:
    """Return a strategy of odd and random texts, numbers of any size, valid values and values next to the limits."""
    borders = [bound + step for bound in (setting.minimum, setting.maximum) if bound is not None for step in (-1, 0, 1)]
    return st.one_of(
        st.sampled_from(ODD),
        st.text(CHARACTERS, max_size=20),
        st.text("0123456789.eE+-_ ", max_size=12),
        st.integers().map(str),
        st.floats().map(repr),
        st.sampled_from([f"{border:.0f}" for border in borders] or ["x"]),
        good(setting),
        good(setting).map(str.upper),
    )


def check_value(setting: Setting, value: object) -> None:
    assert type(value) is setting.type
    if isinstance(value, str):
        assert "\0" not in value
        assert 0 < len(os.fsencode(value)) <= (1 if setting.path else 4) * setting.longest
        assert setting.path or value.isprintable()
        assert not setting.choices or value.lower() in setting.choices
    elif setting.type in NUMBERS:
        assert math.isfinite(value)
        assert setting.minimum <= value <= setting.maximum


def check_refusal(error: ValueError, setting: Setting) -> None:
    check_text(error, f"{setting.name}='", f'{setting.name}="')
    assert f" is not valid: expected {setting.accepted()}" in str(error), error


def check_text(error: ValueError, *beginnings: str) -> None:
    assert type(error) is ValueError, error  # a UnicodeError would report an internal problem of Python
    assert str(error).startswith(beginnings), error
    assert str(error).isprintable(), error
    assert len(str(error)) < 1500, error


@thorough
@given(st.sampled_from(TABLE).flatmap(lambda setting: st.tuples(st.just(setting), anything(setting))))
def test_fault_30_variables(case: tuple[Setting, str]) -> None:
    setting, text = case
    try:
        loaded = settings.load({setting.name: text})
    except ValueError as error:
        check_refusal(error, setting)
        return
    if text != "":
        check_value(setting, loaded.explicit[setting.name])
    for value in loaded.for_engine().values():
        assert isinstance(value, bytes) or -(2**63) <= value < 2**63


@thorough
@given(st.sampled_from(TABLE).flatmap(lambda setting: st.tuples(st.just(setting), good(setting))))
def test_every_value_in_range_is_accepted(case: tuple[Setting, str]) -> None:
    setting, text = case
    check_value(setting, settings.parse(setting, text))


@briefly
@given(st.sampled_from(WITH_FLAG).flatmap(lambda item: st.tuples(st.just(item), anything(item[1]))))
def test_fault_30_flags(case: tuple[tuple[str, Setting], str]) -> None:
    (dest, setting), text = case
    if setting.type is bool:
        return
    try:
        options = vars(parse_args(["-np", "1", f"{setting.flag}={text}", "true"]))
    except ValueError as error:
        check_refusal(error, setting.given_as(setting.flag))
        return
    given_with = {"autotune": True, "timeline_filename": "t", dest: options[dest]}
    variables = {
        name: value for name, value in flag_environment(JobOptions.of(given_with)).items() if name == setting.name
    }
    for value in settings.load(variables).explicit.values():
        check_value(setting, value)


@briefly
@given(
    case=st.sampled_from(WITH_FLAG).flatmap(
        lambda item: st.tuples(st.just(item), anything(item[1]).map(json.dumps) | anything(item[1]))
    )
    | st.tuples(st.sampled_from(WITH_FLAG), st.sampled_from(YAML_VALUES)),
)
def test_fault_30_config_keys(tmp_path_factory: pytest.TempPathFactory, case: tuple[tuple[str, Setting], str]) -> None:
    (dest, setting), text = case
    section, _, key = setting.yaml_key.partition(".")
    path = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    path.write_bytes(f"{section}:\n  {key}: {text}\n".encode(errors="surrogatepass"))
    try:
        values = read_config_file(str(path), pytest.fail)
    except ValueError as error:
        check_text(error, f"{path}:")
        return
    if dest in values:
        check_value(setting.given_as(setting.yaml_key), values[dest])


@briefly
@given(st.lists(st.sampled_from([*"001122223", *ODD]), min_size=6, max_size=6))
def test_fault_30_places(numbers: Sequence[str]) -> None:
    names = [f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")]
    try:
        found = discover(dict(zip(names, numbers, strict=True)))
    except ValueError as error:
        check_text(error, *names, "rank", "local_rank", "cross_rank", "local_size", "cross_size")
        return
    assert 0 <= found.rank < found.size
    assert 0 <= found.local_rank < found.local_size <= found.size
    assert 0 <= found.cross_rank < found.cross_size <= found.size


@briefly
@given(st.text("ab.:,0123-\u0661", max_size=20) | st.text(CHARACTERS, max_size=20) | st.sampled_from(ODD))
def test_fault_30_hosts(text: str) -> None:
    try:
        hosts = parse_hosts(text)
    except ValueError as error:
        check_text(error, "Invalid host input '", 'Invalid host input "')
        return
    assert all(host.slots >= 1 for host in hosts)
