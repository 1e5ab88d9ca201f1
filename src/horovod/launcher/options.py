# SPDX-License-Identifier: Apache-2.0
"""Options of a job, from horovodrun's flags or from the arguments of `horovod.run`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from horovod.common.settings_table import TABLE, Setting, Value
from horovod.launcher.start.limits import check_cooldown

# Titles of the flag groups, by the section of the settings' YAML keys. These flags are made from the table of settings.
SECTIONS = {
    "params": "tuneable parameter arguments",
    "autotune": "autotune arguments",
    "timeline": "timeline arguments",
    "stall_check": "stall check arguments",
    "library_options": "library arguments",
    "logging": "logging arguments",
    "elastic": "elastic arguments",
}
FLAG_SETTINGS: dict[str, Setting] = {
    setting.flag.lstrip("-").replace("-", "_"): setting
    for setting in TABLE
    if setting.flag is not None and (setting.yaml_key or "").partition(".")[0] in SECTIONS
}


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Options of one job. Each field is named like its flag in the result of `parse_args`.

    The flags in FLAG_SETTINGS are not fields. Their values are in `settings`, by environment variable, in the flag's
    unit.
    """

    num_proc: int = 1
    min_num_proc: int | None = None
    max_num_proc: int | None = None
    slots: int | None = None
    elastic_timeout: int | None = None
    reset_limit: int | None = None
    cooldown_range: tuple[float, float] | None = None
    hosts: str | None = None
    hostfile: str | None = None
    host_discovery_script: str | None = None
    start_timeout: int | None = None
    nics: tuple[str, ...] = ()
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    disable_cache: bool = False
    output_filename: str | None = None
    prefix_output_with_timestamp: bool = False
    tag: str | None = None
    verbose: bool = False
    tcp: bool = False
    use_mpi: bool = False
    use_jsrun: bool = False
    mpi_args: str | None = None
    binding_args: str | None = None
    settings: Mapping[str, Value] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> JobOptions:
        """Return the options in `given`, which maps the names of parsed flags to values.

        None means that a flag was not given.

        Other names are ignored: the result of `parse_args` also holds flags that do not describe a job.
        """
        values = {name: given[name] for name in _FIELDS if given.get(name) is not None}
        for name in _SWITCHES & values.keys():
            values[name] = bool(values[name])
        if "nics" in values:
            values["nics"] = tuple(values["nics"])
        if "cooldown_range" in values:
            check_cooldown(values["cooldown_range"])
            low, high = values["cooldown_range"]
            values["cooldown_range"] = float(low), float(high)
        settings = {setting.name: given[flag] for flag, setting in FLAG_SETTINGS.items() if given.get(flag) is not None}
        return cls(**values, settings=MappingProxyType(settings))

    @property
    def is_elastic(self) -> bool:
        return self.min_num_proc is not None or self.host_discovery_script is not None

    @property
    def names_hosts(self) -> bool:
        return self.hosts is not None or self.hostfile is not None

    def given_names(self) -> frozenset[str]:
        """Return the names of the flags whose value differs from the default."""
        own = {one.name for one in fields(self) if one.name in _FIELDS and getattr(self, one.name) != one.default}
        return frozenset(own | {flag for flag, setting in FLAG_SETTINGS.items() if setting.name in self.settings})


_FIELDS = frozenset(one.name for one in fields(JobOptions)) - {"settings"}
_SWITCHES = frozenset(one.name for one in fields(JobOptions) if one.default is False)
