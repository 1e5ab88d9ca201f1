# SPDX-License-Identifier: Apache-2.0
"""Settings from the environment, checked against the table in horovod.common.settings_table.

Only values that the user has set are passed to the engine, which has its own defaults.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

from horovod.common.exceptions import HorovodRuntimeWarning
from horovod.common.settings_table import BUILD_TIME_PREFIXES, TABLE, Setting, Value
from horovod.common.settings_values import parse
from horovod.common.suggestions import did_you_mean

__all__ = ["BY_NAME", "Settings", "default_of", "load", "parse", "value_of"]

BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in TABLE}

# Settings that the autotuner does not tune if the user set them, with their bits in hvd_settings.autotune_fixed.
_TUNED: Mapping[str, int] = {"HOROVOD_FUSION_THRESHOLD": 1, "HOROVOD_CYCLE_TIME": 2, "HOROVOD_CHUNK_BYTES": 4}


@dataclass(frozen=True)
class Settings:
    """Values of all settings.

    Attributes:
        explicit: Values from the environment.
        engine_only: Fields of hvd_settings for which there is no variable.
    """

    explicit: Mapping[str, Value] = field(default_factory=dict)
    engine_only: Mapping[str, int | bytes] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Value | None:
        return self.explicit[name] if name in self.explicit else default_of(name)

    def flag(self, name: str) -> bool:
        return bool(self[name])

    def integer(self, name: str) -> int:
        value = self[name]
        assert isinstance(value, int), name
        return value

    def number(self, name: str) -> float:
        value = self[name]
        assert isinstance(value, (int, float)), name
        return float(value)

    def text(self, name: str) -> str | None:
        value = self[name]
        assert value is None or isinstance(value, str), name
        return value

    def without_effect(self) -> list[str]:
        """Return the names of settings that the user has set to a non-default value but that have no effect."""
        kept = [BY_NAME[name] for name in self.explicit if BY_NAME[name].kept]
        names = [setting.name for setting in kept if str(self[setting.name]).lower() != str(setting.default).lower()]
        if str(self["HOROVOD_CPU_OPERATIONS"]).lower() == "ccl":
            names.append("HOROVOD_CPU_OPERATIONS")
        return names

    def for_engine(self) -> dict[str, int | bytes]:
        """Return the explicit engine settings, by the field names of hvd_settings and in the engine's units."""
        result: dict[str, int | bytes] = dict(self.engine_only)
        for name, value in self.explicit.items():
            setting = BY_NAME[name]
            if setting.engine_field is not None:
                result[setting.engine_field] = _in_engine(setting, value)
        if self["HOROVOD_STALL_CHECK_DISABLE"]:
            result["stall_warning_ms"] = result["stall_shutdown_ms"] = result["deadlock_ms"] = 0
        if self.explicit.get("HOROVOD_AUTOTUNE"):
            result["autotune_fixed"] = sum(bit for name, bit in _TUNED.items() if name in self.explicit)
        return result


def _in_engine(setting: Setting, value: Value) -> int | bytes:
    if not isinstance(value, str):
        return round(value * setting.engine_factor)
    return setting.choices.index(value.lower()) if setting.choices else os.fsencode(value)


def load(environ: Mapping[str, str]) -> Settings:
    """Parse all HOROVOD_* variables. Raise ValueError for a bad value; warn once for each unknown name."""
    explicit = {}
    for name, text in environ.items():
        setting = BY_NAME.get(name)
        if setting is not None:
            if text != "":
                explicit[name] = parse(setting, text)
        elif name.startswith("HOROVOD_") and not name.startswith(BUILD_TIME_PREFIXES):
            _warn_unknown(name)
    if prefers_no_nccl(environ):
        explicit.setdefault("HOROVOD_GPU_TRANSPORT", "own")
    return Settings(explicit)


def prefers_no_nccl(environ: Mapping[str, str]) -> bool:
    """Return True if the variables of Horovod's build ask for GPU operations without NCCL.

    Khorovod has no such build, so these variables take effect at run time.
    """
    wish = environ.get("HOROVOD_GPU_ALLREDUCE") or environ.get("HOROVOD_GPU_OPERATIONS") or "NCCL"
    return wish.upper() != "NCCL"


def value_of(name: str, environ: Mapping[str, str]) -> Value | None:
    """Return one setting, for code that runs without a world. Raise ValueError for a bad value."""
    text = environ.get(name, "")
    return parse(BY_NAME[name], text) if text else default_of(name)


@functools.cache
def default_of(name: str) -> Value | None:
    setting = BY_NAME[name]
    if setting.engine_field is None:
        return setting.default
    from horovod._engine import default_settings  # imported late because the launcher rarely needs it

    return setting.default_of(default_settings())


def _warn_unknown(name: str) -> None:
    hint = did_you_mean(name, BY_NAME)
    warnings.warn(f"Unknown setting {name[:100]} is ignored{hint}", HorovodRuntimeWarning, stacklevel=4)
