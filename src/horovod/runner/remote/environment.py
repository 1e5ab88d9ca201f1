# SPDX-License-Identifier: Apache-2.0
"""Which of the launcher's variables go to another host. Pure."""

from __future__ import annotations

from collections.abc import Mapping

# They say where something is on one host: there the host's own are right.
_OF_ONE_HOST = frozenset(
    ("HOME", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM", "TMPDIR", "USER", "_",
     "DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "KRB5CCNAME", "WINDOWID", "TTY", "GPG_TTY")
)  # fmt: skip
_OF_ONE_HOST_PREFIXES = ("SSH_", "XDG_")


def that_travel(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if name not in _OF_ONE_HOST and not name.startswith(_OF_ONE_HOST_PREFIXES)
    }
