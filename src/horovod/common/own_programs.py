# SPDX-License-Identifier: Apache-2.0
"""Arguments to run a Python program of this package, so that no file in the current folder replaces a module."""

from __future__ import annotations

# With -c, sys.path begins with an empty entry, which stands for the current folder. Only Python 3.11 and newer have -P
# to avoid that.
_WITHOUT_FOLDER = "import sys; sys.path[:1] = filter(None, sys.path[:1])"


def module_arguments(module: str) -> list[str]:
    """Return the arguments that run main() of a module."""
    return program_arguments(f"from {module} import main; sys.exit(main())")


def program_arguments(program: str) -> list[str]:
    """Return the arguments that run the text of a program. `sys` is already imported for it."""
    return ["-c", f"{_WITHOUT_FOLDER}; {program}"]
