# SPDX-License-Identifier: Apache-2.0
"""Environment of a worker: the driver's variables, the flags and the config file, and its place in the world."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from horovod.common import place_variables, settings, torchrun_variables
from horovod.common.joining.elastic_place import BIRTH_VARIABLE
from horovod.common.joining.interfaces import check_interfaces, interface_names, loopback_interface
from horovod.common.settings_table import Value
from horovod.common.topology import SECRET_VARIABLE, secret_variable
from horovod.launcher.options import FLAG_SETTINGS, JobOptions
from horovod.launcher.start.hosts import SIMULATE_VARIABLE, SlotInfo

if TYPE_CHECKING:
    from horovod.launcher.remote.probing import Address

_DEVICES = "CUDA_VISIBLE_DEVICES"
# Do not pass these on. The last two are set in elastic workers: a worker may start a job itself, whose ranks must not
# inherit its id or place.
_NOT_PASSED_ON = ("OLDPWD", SECRET_VARIABLE, SIMULATE_VARIABLE, BIRTH_VARIABLE, place_variables.PLANNED)
# Settings of Horovod for ranks that horovodrun itself starts, without mpirun or jsrun.
_BACK_ENDS = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}


def is_exportable(name: str) -> bool:
    """Return True if a variable may be sent to another host."""
    return _is_inherited(name) and not names_devices(name)


def names_devices(name: str) -> bool:
    """Return True for a variable that lists GPUs of one host, which is meaningless on another host."""
    return name.endswith(_DEVICES)


def _is_inherited(name: str) -> bool:
    return not (name in _NOT_PASSED_ON or name.startswith("BASH_FUNC_"))


def shared_gpus_notice(environ: Mapping[str, str], ranks: int) -> str | None:
    """Return a message if the environment lists GPUs, but fewer than this host has ranks, otherwise None.

    A list without a GPU (empty, or -1) is the usual way to train on CPUs.
    """
    listed = environ.get(_DEVICES, "")
    # CUDA ignores the first entry that is not a GPU and all entries after it.
    gpus = len(list(itertools.takewhile(lambda entry: entry.strip() not in ("", "-1"), listed.split(","))))
    if not 0 < gpus < ranks:
        return None
    return (
        f"{_DEVICES}={listed} lists {gpus} GPU{'s' * (gpus > 1)} for {ranks} ranks of this host: ranks must share "
        "GPUs, and a script that pins GPU hvd.local_rank() fails"
    )


def base_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the launcher's environment as workers of this host see it.

    Raises:
        ValueError: A known setting has a bad value.
    """
    for name, value in environ.items():
        if value and name in settings.BY_NAME:
            settings.parse(settings.BY_NAME[name], value)
    inherited = torchrun_variables.without_outer_place(environ)
    passed = {name: value for name, value in inherited.items() if _is_inherited(name)}
    # With faulthandler, a crash of native code also prints the Python stack.
    return {"PYTHONFAULTHANDLER": "1", **passed, "PYTHONUNBUFFERED": "1"}


def flag_environment(options: JobOptions) -> dict[str, str]:
    """Return the variables for the flags and config values that were given."""
    skipped = set()
    if not options.settings.get("HOROVOD_AUTOTUNE"):
        skipped |= {setting.name for name, setting in FLAG_SETTINGS.items() if name.startswith("autotune_")}
    if "HOROVOD_TIMELINE" not in options.settings:
        skipped.add("HOROVOD_TIMELINE_MARK_CYCLES")
    if _shutdown_before_warning(options):
        skipped.add("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")
    variables = {
        setting.name: _text(_in_unit_of(setting.flag_factor, options.settings[setting.name]))
        for setting in FLAG_SETTINGS.values()
        if setting.name in options.settings and setting.name not in skipped
    }
    if options.tcp:
        variables["NCCL_IB_DISABLE"] = "1"
    if options.start_timeout is not None:
        variables["HOROVOD_START_TIMEOUT"] = str(options.start_timeout)
    return variables


def number_of(options: JobOptions, variable: str) -> float:
    """Return a setting as given to the launcher, or from the environment. Raise ValueError if it is out of range."""
    name, setting = next((name, one) for name, one in FLAG_SETTINGS.items() if one.name == variable)
    given = options.settings.get(variable)
    if given is None:
        return float(settings.value_of(variable, os.environ) or 0)
    return float(settings.parse(setting.given_as(name), str(int(given) if setting.type is bool else given)))


def shows_warnings(options: JobOptions) -> bool:
    """Return True if the launcher shows warnings, which depends on the workers' log level."""
    level = options.settings.get("HOROVOD_LOG_LEVEL") or os.environ.get("HOROVOD_LOG_LEVEL", "")
    return str(level).lower() not in ("error", "fatal")


def slot_environment(slot: SlotInfo) -> dict[str, str]:
    return {
        "HOROVOD_HOSTNAME": slot.hostname,
        **place_variables.variables(slot),
    }


def torchrun_environment(slot: SlotInfo, address: str, port: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return torchrun's variables for a rank, except those that the user has set.

    `port` is free for PyTorch's store.
    """
    place = {
        "RANK": slot.rank,
        "WORLD_SIZE": slot.size,
        "LOCAL_RANK": slot.local_rank,
        "LOCAL_WORLD_SIZE": slot.local_size,
    }
    return torchrun_variables.settable(torchrun_variables.variables(place, address, port), environ)


def overruled_settings(environ: Mapping[str, str], options: JobOptions) -> list[str]:
    """Return a message for each setting that asks for MPI, which the launcher replaces in the workers."""
    asked = {**environ, **flag_environment(options)}
    return [
        f"{name}={asked[name]} has no effect: horovodrun uses gloo unless it is started with --mpi"
        for name in _BACK_ENDS
        if asked.get(name, "").lower() not in ("", "gloo")
    ]


def rendezvous_environment(address: str, port: int, secret: bytes) -> dict[str, str]:
    return {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        **_BACK_ENDS,
        **secret_variable(secret),
    }


def interface_environment(nics: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for the network interfaces of the flag or the environment.

    An NCCL_SOCKET_IFNAME that the user set stays, unless a flag overrides it.

    Raises:
        ValueError: An interface does not exist.
    """
    text = environ.get("HOROVOD_GLOO_IFACE", "")
    asked = list(nics) or interface_names(text)
    if asked or text:
        check_interfaces(asked)
    chosen = asked or [loopback_interface()]
    variables = {"HOROVOD_GLOO_IFACE": chosen[0]}
    if nics or "NCCL_SOCKET_IFNAME" not in environ:
        variables["NCCL_SOCKET_IFNAME"] = ",".join(chosen)
    return variables


def address_environment(address: Address, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for workers of a host that other hosts reach at `address`."""
    variables = {"HOROVOD_HOST_ADDRESS": address.text, "HOROVOD_GLOO_IFACE": address.interface}
    if "NCCL_SOCKET_IFNAME" not in environ:
        variables["NCCL_SOCKET_IFNAME"] = address.interface
    return variables


def _shutdown_before_warning(options: JobOptions) -> bool:
    shutdown = options.settings.get("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")
    if not shutdown:
        return False
    warning = options.settings.get("HOROVOD_STALL_CHECK_TIME_SECONDS")
    warning = warning if warning is not None else settings.default_of("HOROVOD_STALL_CHECK_TIME_SECONDS")
    if float(shutdown) >= float(warning or 0):
        return False
    if shows_warnings(options):
        print(
            f"horovodrun: --stall-check-shutdown-time-seconds {shutdown} is ignored: "
            f"it is smaller than the warning time, {warning} s",
            file=sys.stderr,
        )
    return True


def _in_unit_of(factor: float, value: Value) -> Value:
    return value if factor == 1 or isinstance(value, str) else value * factor


def _text(value: bool | int | float | str) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
