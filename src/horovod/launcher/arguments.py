# SPDX-License-Identifier: Apache-2.0
"""Flags of horovodrun: those for settings are made from the table of settings, and the rest is listed here.

A flag that is not given has no default in the parser. The config file fills the gaps first, then DEFAULTS.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from horovod.common.settings_table import TABLE, Setting, Value
from horovod.common.settings_values import is_integer, parse, shown
from horovod.common.suggestions import did_you_mean
from horovod.launcher import without_effect
from horovod.launcher.actions import make_nic_action
from horovod.launcher.options import FLAG_SETTINGS, SECTIONS

# Flags whose values are checked by the table: FLAG_SETTINGS, and two flags that have no config file key.
_CHECKED: dict[str, Setting] = FLAG_SETTINGS | {
    setting.flag.lstrip("-").replace("-", "_"): setting
    for setting in TABLE
    if setting.flag in ("--start-timeout", "--elastic-timeout")
}
# Flags without a config file key that have no effect. For flags with such a key, the table's text says it.
_KEPT = [dest for dest, setting in _CHECKED.items() if setting.kept and dest not in FLAG_SETTINGS]
_METAVARS = {int: "N", float: "X", str: "TEXT"}
_MOST_DIGITS = 18
_SHOWN = 100  # characters shown of an unknown flag
TAGS = ("auto", "always", "never")
SHOWN_NEGATIVES = ("--no-hierarchical-allreduce", "--no-hierarchical-allgather", "--no-torus-allreduce")


def is_negative(flag: str) -> bool:
    """Return True if the flag is the opposite of its YAML key (--no-stall-check and stall_check.enabled)."""
    return flag.startswith("--no-") or "-without-" in flag


def opposite(flag: str) -> str:
    if "-without-" in flag:
        return flag.replace("-without-", "-with-")
    return "--" + flag[len("--no-") :] if flag.startswith("--no-") else "--no-" + flag[2:]


class FlagParser:
    """argparse parser whose flags end where the worker's command begins."""

    def __init__(self) -> None:
        self._parser = argparse.ArgumentParser(
            prog="horovodrun",
            usage="horovodrun -np N [flags] command [arguments...]",
            description="Run a training script on several processes.",
            argument_default=argparse.SUPPRESS,
            formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=42, width=110),
        )
        self._actions: dict[str, argparse.Action] = {}
        self._groups: dict[str, argparse._ArgumentGroup] = {}
        _add_general(self)
        self._add_settings()
        _add_elastic_and_ssh(self)
        _add_hosts_and_controller(self)
        self._parser.add_argument(
            "command", nargs=argparse.REMAINDER, help="the program and its arguments, started once for each rank"
        )
        for action in self._parser._actions:  # argparse has no public list of its actions
            for flag in action.option_strings:
                self._actions[flag] = action
            if action.dest in without_effect.FLAGS or action.dest in _KEPT:
                action.help = f"{action.help}; {without_effect.NOTE}"

    def parse(self, argv: Sequence[str]) -> dict[str, Any]:
        """Return the given flags by name, and `command`. Raise ValueError for a bad value of a setting.

        For --help and unknown flags it ends the process, as argparse does.
        """
        end, flags = self._split(argv)
        for flag in flags:
            if not self._is_known(flag):
                self.error(f"unrecognized arguments: {flag[:_SHOWN]}{did_you_mean(flag, self._actions)}")
        given = vars(self._parser.parse_args(argv[:end]))
        for dest, setting in _CHECKED.items():
            text = given.get(dest)
            if text == []:
                text = "--"  # before Python 3.13, argparse drops the value of --flag=--
            if isinstance(text, str) and (text or setting.type is not str):  # an empty string leaves the setting unset
                value = parsed(setting.given_as(setting.flag or ""), text)
                given[dest] = value.upper() if setting.choices and isinstance(value, str) else value
        command = list(argv[end:])
        given["command"] = command[1:] if command[:1] == ["--"] else command
        return given

    def error(self, text: str) -> None:
        self._parser.error(text)

    def group(self, title: str) -> argparse._ArgumentGroup:
        if title not in self._groups:
            self._groups[title] = self._parser.add_argument_group(title)
        return self._groups[title]

    def _split(self, argv: Sequence[str]) -> tuple[int, list[str]]:
        """Return the index of the first word that is neither a flag nor a flag's value, and the flags before it.

        This runs before argparse, which would parse the command's flags as flags of horovodrun.
        """
        index = 0
        flags: list[str] = []
        while index < len(argv):
            word = argv[index]
            if word == "--" or not word.startswith("-") or word == "-":
                return index, flags
            flags.append(word.partition("=")[0])
            index += 1
            if "=" not in word:
                index += self._values_of(word)
        return len(argv), flags

    def _is_known(self, flag: str) -> bool:
        """Return True for a flag, an abbreviation of one or more flags, and a short flag with its value (-p22)."""
        if any(known.startswith(flag) for known in self._actions):
            return True
        short = None if flag.startswith("--") else self._actions.get(flag[:2])
        return short is not None and short.nargs != 0

    def _values_of(self, flag: str) -> int:
        action = self._actions.get(flag)
        if action is None:
            found = {id(self._actions[name]): self._actions[name] for name in self._actions if name.startswith(flag)}
            if len(found) != 1:
                return 0  # unknown or ambiguous, which argparse reports
            action = next(iter(found.values()))
        if isinstance(action.nargs, int):
            return action.nargs
        return 1

    def _add_settings(self) -> None:
        groups = {key: self.group(title) for key, title in SECTIONS.items()}
        for dest, setting in FLAG_SETTINGS.items():
            assert setting.flag is not None
            assert setting.yaml_key is not None
            group = groups[setting.yaml_key.partition(".")[0]]
            if setting.type is bool:
                _add_switch(group, dest, setting)
            else:
                choices = ",".join(choice.upper() for choice in setting.choices)
                group.add_argument(
                    setting.flag,
                    dest=dest,
                    metavar=f"{{{choices}}}" if choices else _METAVARS[setting.type],
                    help=f"{setting.meaning} Sets {setting.name}.",
                )
        library, logging = groups["library_options"], groups["logging"]
        library.add_argument("--mpi-args", help='more arguments for mpirun: --mpi-args="..."')
        library.add_argument(
            "--tcp",
            action="store_true",
            help="no InfiniBand. Sets NCCL_IB_DISABLE; the engine itself has no other way than TCP",
        )
        library.add_argument("--binding-args", help="how mpirun binds processes")
        for flag, value in (("--log-hide-timestamp", True), ("--no-log-hide-timestamp", False)):
            logging.add_argument(
                flag, dest="log_without_timestamp", action="store_const", const=value, help=argparse.SUPPRESS
            )
        logging.add_argument(
            "-prefix-timestamp",
            "--prefix-output-with-timestamp",
            action="store_true",
            help="every line of the workers' output begins with the time",
        )


def parsed(setting: Setting, text: str) -> Value:
    """Return the value of a flag or a config key. A list of numbers with one member is that number."""
    value = parse(setting, text)
    return int(value) if setting.numbers and "," not in str(value) else value


def _whole(text: str) -> int:
    if not is_integer(text) or len(text) > _MOST_DIGITS:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not an integer, or is far too large")
    return int(text)


def _add_switch(group: argparse._ArgumentGroup, dest: str, setting: Setting) -> None:
    assert setting.flag is not None
    negative = opposite(setting.flag)
    group.add_argument(
        setting.flag, dest=dest, action="store_const", const=True, help=f"{setting.meaning} Sets {setting.name}."
    )
    off = "Off." if setting.kept else "Off, also for autotune."
    note = " Accepted, no effect in this version." if setting.kept else ""
    help_text = f"{off}{note} Sets {setting.name}." if negative in SHOWN_NEGATIVES else argparse.SUPPRESS
    group.add_argument(negative, dest=dest, action="store_const", const=False, help=help_text)


def _add_general(flags: FlagParser) -> None:
    add = flags.group("general arguments").add_argument
    add("-v", "--version", action="store_true", help="print the version")
    add(
        "-np",
        "--num-proc",
        dest="num_proc",
        type=_whole,
        metavar="N",
        help="number of worker processes (LSF, Slurm: theirs)",
    )
    add("-cb", "--check-build", action="store_true", help="print which frameworks and back ends work here")
    add("--disable-cache", action="store_true", help="do not reuse results of earlier ssh and interface checks")
    add("--start-timeout", metavar="S", help="how long each host has to answer (HOROVOD_START_TIMEOUT or 30)")
    add(
        "--network-interfaces",
        dest="nics",
        action=make_nic_action(False),
        metavar="NIC[,NIC]",
        help="interfaces to use",
    )
    add("--network-interface", dest="nics", action=make_nic_action(True), metavar="NIC", help="an interface")
    add("--output-filename", metavar="DIR", help="also write the output to DIR/rank.N/stdout and stderr")
    add(
        "--tag",
        choices=TAGS,
        help="whether lines of the output begin with [rank]<stdout>: (auto: yes, but not with --mpi, nor of "
        "horovod.run in a notebook)",
    )
    add("--verbose", action="store_true", help="say more about the launch, keep all output after a failure")
    add("--config-file", metavar="YAML", help="flags from a file; those on the command line win")


def _add_elastic_and_ssh(flags: FlagParser) -> None:
    add = flags.group("ssh arguments").add_argument
    add("-p", "--ssh-port", type=_whole, help="port of sshd on all hosts")
    add("-i", "--ssh-identity-file", help="file of the private key")
    add = flags.group("elastic arguments").add_argument
    add("--min-np", "--min-num-proc", dest="min_num_proc", type=_whole, help="train with at least this many (elastic)")
    add("--max-np", "--max-num-proc", dest="max_num_proc", type=_whole, help="train with at most this many")
    add("--slots-per-host", dest="slots", type=_whole, help="slots of hosts that discovery names without a number")
    add("--elastic-timeout", metavar="S", help="limit for finding enough slots (HOROVOD_ELASTIC_TIMEOUT or 600)")
    add("--reset-limit", type=_whole, help="the job fails after this many resets")
    add(
        "--blacklist-cooldown-range",
        dest="cooldown_range",
        type=_whole,
        nargs=2,
        metavar=("MIN", "MAX"),
        help="seconds after which a failed host may come back",
    )


def _add_hosts_and_controller(flags: FlagParser) -> None:
    group = flags.group("host arguments").add_mutually_exclusive_group()
    group.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:SLOTS[,...]",
        help="hosts and how many workers each may run",
    )
    group.add_argument(
        "-hostfile",
        "--hostfile",
        metavar="FILE",
        help="the same as a file of lines 'host slots=n'",
    )
    group.add_argument("--host-discovery-script", metavar="FILE", help="program that prints hosts (elastic)")
    group = flags.group("controller arguments").add_mutually_exclusive_group()
    group.add_argument("--gloo", dest="use_gloo", action="store_true", help="the built-in engine (default)")
    group.add_argument("--mpi", dest="use_mpi", action="store_true", help="start through mpirun")
    group.add_argument("--jsrun", dest="use_jsrun", action="store_true", help="start through LSF's jsrun")


_UNSET = (
    *FLAG_SETTINGS,
    *("num_proc", "start_timeout", "nics", "output_filename", "tag", "config_file", "ssh_port", "ssh_identity_file"),
    *("min_num_proc", "max_num_proc", "slots", "elastic_timeout", "reset_limit", "cooldown_range"),
    *("hosts", "hostfile", "host_discovery_script", "mpi_args", "binding_args", "use_gloo", "use_mpi", "use_jsrun"),
    *("command", "run_func", "executable"),  # set by programs that call horovod.launcher.launch._run
)
_OFF = ("version", "check_build", "disable_cache", "verbose", "tcp", "prefix_output_with_timestamp")
DEFAULTS: dict[str, Any] = {**dict.fromkeys(_UNSET), **dict.fromkeys(_OFF, False)}


class HorovodArgs(argparse.Namespace):
    """Result of parse_args() with every default, for programs that fill it in themselves."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{**DEFAULTS, "num_proc": 1, **given})
