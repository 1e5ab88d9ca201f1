# SPDX-License-Identifier: Apache-2.0
"""argparse actions that record which flags were given, for programs that build their own launcher on this package."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from typing import Any

from horovod.common.exceptions import HorovodDeprecationWarning


def make_override_action(override_args: set[str]) -> type[argparse.Action]:
    """Return an action that stores the value and adds the flag's name to `override_args`.

    A flag in `override_args` takes precedence over the config file.
    """

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
    """Return an action for a flag without a value: store `bool_value` and add the flag's name to `override_args`."""

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
    """Return a make_override_bool_action action that also warns and names the flag to use instead."""
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
    """Return an action for a flag that only requests the report, so `np_arg` is no longer required."""

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
    """Return an action that adds interface names to `namespace.nics`.

    If `deprecated`, a comma-separated list causes a deprecation warning.
    """

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
