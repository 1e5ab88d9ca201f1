# SPDX-License-Identifier: Apache-2.0
"""What a user can do about the failure of a worker: the one remedy that fits its cause, if there is one."""

from __future__ import annotations

import re

_KILLED = (
    "SIGKILL without a message is often the kernel's when memory runs out: look into its log (dmesg), use a smaller "
    "batch or fewer ranks on the host"
)
_CRASHED = "native code crashed: the frames above, if any, are where Python was"

# The first that is found in how the worker ended, or in the line of its error.
_REMEDIES = (
    (r"killed by signal 9\b", _KILLED),
    (
        r"killed by signal (10|12)\b",
        "install a handler for this signal in the script",
    ),
    (r"Fatal Python error|killed by signal (4|6|7|8|11)\b", _CRASHED),
    (r"OutOfMemoryError|out of memory|MemoryError", "use a smaller batch, or fewer ranks on the host"),
    (
        r"invalid device ordinal",
        "the host has fewer GPUs than ranks: start fewer, or pin GPU hvd.local_rank() % torch.cuda.device_count()",
    ),
    (r"ModuleNotFoundError|ImportError", "install it for the Python that runs the workers, on every host"),
    (r"No space left on device", "free space, or write elsewhere"),
    (r"Too many open files", "raise the limit of open files (ulimit -n)"),
    (r"FileNotFoundError", "check that the path exists on the host of this rank"),
    (
        r"HorovodInternalError",
        "look for the rank that this error names: it was lost first, and this rank only noticed",
    ),
)


def remedy_for(how: str, error: str) -> str | None:
    """Return a remedy.

    Args:
        how: How the worker ended, for example "killed by signal 9 (SIGKILL)".
        error: The line of its stderr that names the error.
    """
    text = f"{how}\n{error}"
    return next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, text)), None)
