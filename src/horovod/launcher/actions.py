# SPDX-License-Identifier: Apache-2.0
"""Actions for argparse that note which flags were given, for programs that build launchers of their own on ours."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from typing import Any

from horovod.common.exceptions import HorovodDeprecationWarning


def make_override_action(override_args: set[str]) -> type[argparse.Action]:
    """Stores the value, and the flag's name in `override_args`: it then beats the config file."""

    class StoreOverride(argparse.Action):
        def __call__(
            self,
            parser: argparse.ArgumentParser,
            namespace: argparse.Namespace,
            values: str | Sequence[Any] | None,
            option_string: str | None = None,
        ) -> None:
            override_args.add(self.dest)
            setattr(namespace, self.dest, values)

    return StoreOverride


def make_override_bool_action(override_args: set[str], bool_value: bool) -> type[argparse.Action]:
    """The same for a flag without a value, which stores `bool_value`."""

    class StoreOverrideBool(argparse.Action):
        def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
            options.pop("nargs", None)
            super().__init__(option_strings, dest, nargs=0, **options)

        def __call__(
            self,
            parser: argparse.ArgumentParser,
            namespace: argparse.Namespace,
            values: str | Sequence[Any] | None,
            option_string: str | None = None,
        ) -> None:
            override_args.add(self.dest)
            setattr(namespace, self.dest, bool_value)

    return StoreOverrideBool


def make_override_true_action(override_args: set[str]) -> type[argparse.Action]:
    return make_override_bool_action(override_args, True)


def make_override_false_action(override_args: set[str]) -> type[argparse.Action]:
    return make_override_bool_action(override_args, False)


def make_deprecated_bool_action(
    override_args: set[str], bool_value: bool, replacement_option: str, remove_version: str
) -> type[argparse.Action]:
    """As make_override_bool_action, with a warning that names the flag to use instead."""
    plain = make_override_bool_action(override_args, bool_value)

    class StoreDeprecatedBool(plain):  # type: ignore[misc, valid-type]
        def __call__(
            self,
            parser: argparse.ArgumentParser,
            namespace: argparse.Namespace,
            values: str | Sequence[Any] | None,
            option_string: str | None = None,
        ) -> None:
            warnings.warn(
                f"{option_string} is deprecated and will be removed in {remove_version}: use {replacement_option}",
                HorovodDeprecationWarning,
                stacklevel=2,
            )
            super().__call__(parser, namespace, values, option_string)

    return StoreDeprecatedBool


def make_check_build_action(np_arg: argparse.Action) -> type[argparse.Action]:
    """A flag that asks only for the report: the number of processes is then not required."""

    class CheckBuild(argparse.Action):
        def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
            options.pop("nargs", None)
            super().__init__(option_strings, dest, nargs=0, **options)

        def __call__(
            self,
            parser: argparse.ArgumentParser,
            namespace: argparse.Namespace,
            values: str | Sequence[Any] | None,
            option_string: str | None = None,
        ) -> None:
            np_arg.required = False
            setattr(namespace, self.dest, True)

    return CheckBuild


def make_nic_action(deprecated: bool) -> type[argparse.Action]:
    """Collects interface names in `nics`; a comma list of the deprecated, single form gives a warning."""

    class AddInterfaces(argparse.Action):
        def __call__(
            self,
            parser: argparse.ArgumentParser,
            namespace: argparse.Namespace,
            values: str | Sequence[Any] | None,
            option_string: str | None = None,
        ) -> None:
            names = [name.strip() for name in str(values).split(",") if name.strip()]
            if deprecated and len(names) > 1:
                warnings.warn(
                    "--network-interface with a comma separated list is deprecated: use --network-interfaces",
                    HorovodDeprecationWarning,
                    stacklevel=2,
                )
            namespace.nics = [*(getattr(namespace, "nics", None) or []), *names]

    return AddInterfaces
