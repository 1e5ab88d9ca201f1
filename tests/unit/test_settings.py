# SPDX-License-Identifier: Apache-2.0
"""The table of settings: parsing, ranges, the values passed to the engine, and warnings about unknown names."""

import re
import runpy
import warnings
from pathlib import Path

import pytest

from horovod._engine import default_settings
from horovod.common import settings
from horovod.common.settings_table import BUILD_TIME_PREFIXES, TABLE

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "engine"
PACKAGE = ROOT / "src" / "horovod"
# Engine settings without a variable of their own: they come from several variables, a part of one, or a detected or
# fixed value.
DERIVED = {"autotune_fixed", "engine_core", "nccl_bundled", "nccl_host_id", "launches_by_calls"}


def test_defaults_without_environment() -> None:
    loaded = settings.load({})
    assert loaded.integer("HOROVOD_FUSION_THRESHOLD") == 128 * 1024 * 1024
    assert loaded.number("HOROVOD_CYCLE_TIME") == 1.0
    assert loaded.flag("HOROVOD_SHARED_MEMORY") is True
    assert loaded.text("HOROVOD_TIMELINE") is None
    assert loaded.for_engine() == {}


def test_only_explicit_settings_reach_the_engine_in_its_units() -> None:
    loaded = settings.load(
        {"HOROVOD_CYCLE_TIME": "2.5", "HOROVOD_SHARED_MEMORY": "0", "HOROVOD_PEER_TIMEOUT_SECONDS": "1.5", "PATH": "x"}
    )
    assert loaded.for_engine() == {"cycle_time_us": 2500, "shared_memory": 0, "peer_timeout_ms": 1500}


def test_the_autotuner_learns_what_the_user_fixed() -> None:
    fixed = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": "log.csv", "HOROVOD_CYCLE_TIME": "2"}
    assert settings.load(fixed).for_engine() == {
        "autotune": 1,
        "autotune_log": b"log.csv",
        "autotune_fixed": 2,
        "cycle_time_us": 2000,
    }
    everything = fixed | {"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_CHUNK_BYTES": "4096"}
    assert settings.load(everything).for_engine()["autotune_fixed"] == 7
    assert settings.load({"HOROVOD_AUTOTUNE": "1"}).for_engine() == {"autotune": 1, "autotune_fixed": 0}


@pytest.mark.parametrize(("text", "expected"), [("1", True), ("2", True), ("0", False), ("-1", False)])
def test_booleans_are_integers_above_zero(text: str, expected: bool) -> None:
    assert settings.load({"HOROVOD_ELASTIC": text}).flag("HOROVOD_ELASTIC") is expected


@pytest.mark.parametrize(
    ("name", "text", "accepted"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "-1", "an integer of bytes from 0 to 1099511627776; the nearest is 0"),
        ("HOROVOD_FUSION_THRESHOLD", "64M", "an integer of bytes from 0 to 1099511627776"),
        ("HOROVOD_FUSION_THRESHOLD", "1e6", "an integer of bytes from 0 to 1099511627776; the nearest is 1000000"),
        ("HOROVOD_FUSION_THRESHOLD", "9" * 20, "an integer of bytes from 0 to 1099511627776; the nearest is 10995116"),
        ("HOROVOD_CYCLE_TIME", "nan", "a number of milliseconds from 0 to 3600000"),
        ("HOROVOD_CYCLE_TIME", "inf", "a number of milliseconds from 0 to 3600000; the nearest is 3600000"),
        ("HOROVOD_CYCLE_TIME", "1e300", "a number of milliseconds from 0 to 3600000; the nearest is 3600000"),
        ("HOROVOD_CYCLE_TIME", " ", "a number of milliseconds from 0 to 3600000"),
        ("HOROVOD_GENERATION", "99999999999", "an integer from 0 to 2147483647; the nearest is 2147483647"),
        ("HOROVOD_SIZE", "1_000", "an integer from 1 to 1048576; the nearest is 1000"),
        ("HOROVOD_SIZE", "\u0662", "an integer from 1 to 1048576; the nearest is 2"),
        ("HOROVOD_SIZE", "0x2", "an integer from 1 to 1048576"),
        ("HOROVOD_ELASTIC", "yes", "an integer (above 0 means on); the nearest is 1"),
        ("HOROVOD_LOG_LEVEL", "loud", "one of trace, debug, info, warning, error, fatal"),
        ("HOROVOD_LOG_LEVEL", "warn", "one of trace, debug, info, warning, error, fatal; the nearest is warning"),
        ("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "1.5", "a number from 0 to 1; the nearest is 1"),
        ("HOROVOD_CONTROLLER", "smoke", "one of gloo, mpi"),
        ("HOROVOD_HOSTNAME", "a\udcff", "a text of at most 255 printable characters"),
        ("HOROVOD_TIMELINE", "a\0", "a file name of at most 4095 bytes"),
        ("HOROVOD_THREAD_AFFINITY", "-1", "numbers from 0 to 1023, separated by commas"),
        ("HOROVOD_THREAD_AFFINITY", "1,,2", "numbers from 0 to 1023, separated by commas"),
        ("HOROVOD_THREAD_AFFINITY", "0,1024", "numbers from 0 to 1023, separated by commas"),
        ("HOROVOD_THREAD_AFFINITY", "0-3", "numbers from 0 to 1023, separated by commas"),
    ],
)
def test_bad_value_is_refused_with_name_value_and_range(name: str, text: str, accepted: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{name}={text!r} is not valid: expected {accepted}")):
        settings.load({name: text})


def test_a_long_value_is_cut_in_the_error() -> None:
    with pytest.raises(ValueError, match=r"^HOROVOD_SIZE='9{100}'\.\.\. \(10000 characters\) is not valid: .{,200}$"):
        settings.load({"HOROVOD_SIZE": "9" * 10_000})


def test_file_names_are_bytes() -> None:
    loaded = settings.load({"HOROVOD_AUTOTUNE_LOG": "/tmp/\udcff"})
    assert loaded.for_engine() == {"autotune_log": b"/tmp/\xff"}


def test_choices_ignore_case_and_empty_text_means_unset() -> None:
    loaded = settings.load({"HOROVOD_CONTROLLER": "GLOO", "HOROVOD_SIZE": ""})
    assert loaded.text("HOROVOD_CONTROLLER") == "GLOO"
    assert loaded["HOROVOD_SIZE"] is None


def test_unknown_name_warns_once_with_the_nearest_one() -> None:
    with pytest.warns(
        RuntimeWarning, match="HOROVOD_FUSION_TRESHOLD is ignored; did you mean HOROVOD_FUSION_THRESHOLD"
    ):
        settings.load({"HOROVOD_FUSION_TRESHOLD": "1"})


def test_build_time_names_are_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings.load({"HOROVOD_WITH_PYTORCH": "1", "HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_HOME": "/x"})


@pytest.mark.parametrize(
    ("environ", "transport"),
    [
        ({"HOROVOD_GPU_OPERATIONS": "NCCL"}, "auto"),
        ({"HOROVOD_GPU_OPERATIONS": "MPI"}, "own"),
        ({"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_GPU_ALLREDUCE": "mpi"}, "own"),
        ({"HOROVOD_GPU_OPERATIONS": "MPI", "HOROVOD_GPU_TRANSPORT": "nccl"}, "nccl"),
        ({"HOROVOD_GPU_OPERATIONS": ""}, "auto"),
    ],
)
def test_how_horovod_was_built_for_gpus_is_a_wish(environ: dict[str, str], transport: str) -> None:
    assert settings.load(environ)["HOROVOD_GPU_TRANSPORT"] == transport


def test_table_is_consistent() -> None:
    names = [setting.name for setting in TABLE]
    assert len(set(names)) == len(names)
    for key in ("flag", "yaml_key", "engine_field"):
        values = [getattr(setting, key) for setting in TABLE if getattr(setting, key)]
        assert len(set(values)) == len(values), key
    for setting in TABLE:
        if setting.type in (int, float):
            assert setting.minimum is not None, setting.name
            assert setting.maximum is not None, setting.name
        if setting.default is not None and setting.type is not bool:
            assert settings.parse(setting, str(setting.default)) == setting.default


def test_what_the_engine_reads_is_in_both_lists_and_has_one_default() -> None:
    """Check that only hvd/settings.h has defaults, and that each default is within the range in the table."""
    engine = default_settings()
    ours = {setting.engine_field: setting for setting in TABLE if setting.engine_field}
    assert ours.keys() == engine.keys() - DERIVED
    for field, setting in ours.items():
        assert setting.default is None, f"{setting.name}: its default is in hvd/settings.h"
        default = settings.default_of(setting.name)
        if default is not None:
            assert settings.Settings({setting.name: default}).for_engine()[field] == engine[field]
            assert settings.parse(setting, str(int(default) if setting.type is bool else default)) == default


def test_the_engines_list_is_read_alike_with_and_without_a_compiler() -> None:
    """scripts/settings-docs parses the header itself, without a compiler."""
    script = runpy.run_path(str(ROOT / "scripts" / "settings-docs"))
    assert script["engine_defaults"]() == default_settings()


def test_every_field_of_the_engines_list_is_read_by_the_engine() -> None:
    wings = [ENGINE / wing for wing in ("base", "core", "tuning")]
    texts = "\n".join(file.read_text() for wing in wings for file in wing.rglob("*.[hc]*"))
    read = set(re.findall(r"settings_?(?:\.|->)(\w+)", texts))
    assert default_settings().keys() - read == set()


def test_every_setting_is_read_or_says_that_it_is_not() -> None:
    """Search for quoted names, except in what is written: `"NAME": value` and `["NAME"] = value`."""
    lists = ("settings_table.py", "config_parser.py")  # these modules only list the names
    sources = "\n".join(file.read_text() for file in PACKAGE.rglob("*.py") if file.name not in lists)
    # HOROVOD_SECRET_KEY is a name in a Python module, not an environment variable.
    names = set(re.findall(r'"(HOROVOD_\w+)"(?!: |\] = )', sources)) - {"HOROVOD_SECRET_KEY"}
    read = {name for name in names if not name.startswith(BUILD_TIME_PREFIXES)}
    by_engine = {setting.name for setting in TABLE if setting.engine_field}
    assert read - set(settings.BY_NAME) == set(), "not in the table"
    assert {setting.name for setting in TABLE if not setting.kept} == (read | by_engine)


def test_all_variables_of_the_engine_are_in_the_table() -> None:
    """Check that the engine never calls getenv and that its messages mention only settings of the table."""
    files = [file for file in ENGINE.rglob("*.cc") if file.relative_to(ENGINE).parts[0] not in ("tests", "fuzz")]
    assert len(files) > 50
    texts = "\n".join(file.read_text() for file in files)
    assert "getenv" not in texts
    assert set(re.findall(r"HOROVOD_\w+", texts)) <= set(settings.BY_NAME)
