# SPDX-License-Identifier: Apache-2.0
"""Short shell commands."""

from __future__ import annotations

import subprocess


def execute(command: str) -> tuple[str, int] | None:
    """Run a shell command.

    Return its stdout and stderr as one text, and its exit code, or None if it could not be started.
    """
    try:
        done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    except OSError:
        return None
    return done.stdout.decode(errors="replace"), done.returncode
