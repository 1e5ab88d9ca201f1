# SPDX-License-Identifier: Apache-2.0
"""Arguments with which Python runs a program of ours, so that no file in the current folder takes a module's place."""

from __future__ import annotations

# -c puts an empty entry in front of sys.path, which stands for the current folder. Only Python 3.11 and newer have -P.
_WITHOUT_FOLDER = "import sys; sys.path[:1] = filter(None, sys.path[:1])"


def module_arguments(module: str) -> list[str]:
    """Return the arguments that run main() of a module."""
    return program_arguments(f"from {module} import main; sys.exit(main())")


def program_arguments(program: str) -> list[str]:
    """Return the arguments that run the text of a program, for which `sys` is imported already."""
    return ["-c", f"{_WITHOUT_FOLDER}; {program}"]
