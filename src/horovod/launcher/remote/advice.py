# SPDX-License-Identifier: Apache-2.0
"""Advice about a host on which no agent could be started, based on the output of ssh or the host.

Pure functions only.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from typing import NamedTuple

from horovod.launcher.remote import command as commands

TO_SEE_IT = "to see it: "
_SHOWN = 200


class _Advice(NamedTuple):
    pattern: str  # matched against one line
    text: str


# ssh is recognised by its own phrases, because "No such file" may be about a key, Python, or a login script. Causes
# come before their consequences: without its key file, ssh also prints "Permission denied".
_ADVICE = (
    _Advice(
        r"Identity file .* not accessible|no such identity|Load key .*: No such file",
        "this machine has no such key file: correct -i (--ssh-identity-file), or leave it out",
    ),
    _Advice(
        r"UNPROTECTED PRIVATE KEY FILE|Load key .*: bad permissions",
        "ssh takes no key that others may read: chmod 600 on the key file",
    ),
    _Advice(
        r"Load key .*: (invalid format|error in libcrypto)",
        "the file of -i holds no private key; ssh must log in without a password: ssh-copy-id, ssh-agent, or -i FILE",
    ),
    _Advice(r"Bad owner or permissions on", "ssh takes no configuration that others may write: chmod 600 on that file"),
    _Advice(
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key for .* has changed",
        "the host has another key than before: if it was installed anew, remove the old one (ssh-keygen -R HOST), then "
        "connect once by hand and check the key",
    ),
    _Advice(r"Host key verification failed", "connect once by hand and check the key, or add it to ~/.ssh/known_hosts"),
    _Advice(r"Too many authentication failures", "ssh offers too many keys: name one with -i FILE"),
    _Advice(r"Permission denied \([\w,-]+\)", "ssh must log in without a password: ssh-copy-id, ssh-agent, or -i FILE"),
    _Advice(
        r"Could not resolve hostname", "no such host name is known here: correct it, or add it to DNS or /etc/hosts"
    ),
    _Advice(
        r"connect to host .*: Connection refused",
        "sshd does not listen there: start it, or name its port with -p (--ssh-port)",
    ),
    _Advice(
        r"connect to host .*: (Connection timed out|No route to host|Network is unreachable)",
        "the host is down, or a firewall is in the way of its ssh port (-p)",
    ),
    _Advice(
        r"No module named '?horovod\b",
        "khorovod must be installed on every host, for the same Python as here: {python}",
    ),
    _Advice(r"No module named", "what khorovod needs must be installed with it on every host: pip install khorovod"),
)
_SAME_PYTHON = "the same Python must be on every host, in the same place as here: {python}"
_MISSING = re.compile(r"not found|no such file|cannot execute|exec format error|permission denied", re.IGNORECASE)


def advice_for(complaints: Sequence[str], command: Sequence[str], python: str) -> list[str]:
    """Return the remedy that fits the output, if there is one, and the command that shows the problem.

    Args:
        complaints: What ssh and the host printed, line by line.
        command: The command that was to start the agent.
        python: The Python that the command runs on the host.
    """
    remedy = _remedy(complaints, python)
    return [*([remedy] if remedy else []), f"{TO_SEE_IT}{commands.to_try(command)}"]


def _remedy(complaints: Sequence[str], python: str) -> str | None:
    for one in _ADVICE:
        if any(re.search(one.pattern, line) for line in complaints):
            return one.text.format(python=python)
    if any(python in line and _MISSING.search(line) for line in complaints):
        return _SAME_PYTHON.format(python=python)
    return None


def require_program(command: Sequence[str]) -> None:
    """Check that the program that reaches a host is installed.

    Raises:
        FileNotFoundError: This machine lacks it; the text says what to do.
    """
    name = commands.program_of(command)
    if shutil.which(name) is not None:
        return
    if name == "ssh":
        remedy = "install the OpenSSH client (openssh-client, openssh-clients), or set HOROVOD_SSH_COMMAND"
    elif name in ("srun", "blaunch"):
        remedy = "start this where the commands of the batch system are, or name the hosts by -H, to reach them by ssh"
    elif os.path.basename(name) == commands.KUBEXEC_NAME:
        remedy = f"{commands.KUBEXEC_VARIABLE} names it: correct it, or leave it unset"
    else:
        remedy = f"correct {commands.SSH_VARIABLE}, or leave it unset"
    missing = "is not in PATH" if os.path.basename(name) == name else "is not a program here"
    raise FileNotFoundError(f"other hosts are reached by {name[:_SHOWN]!r}, which {missing}: {remedy}")
