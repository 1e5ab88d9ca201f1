# SPDX-License-Identifier: Apache-2.0
"""Flags of horovodrun, and arguments of horovod.run, that are accepted but that nothing reads, or only in some jobs.

Those that stand for a setting are not here: the table of settings knows them, and rank 0 speaks of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# By the names of horovod.run, or of the parsed flags.
FLAGS = {
    "disable_cache": "--disable-cache",
}
# Those that mean something to an elastic job alone.
ELASTIC_FLAGS = {
    "max_num_proc": "--max-np",
    "slots": "--slots-per-host",
    "elastic_timeout": "--elastic-timeout",
    "reset_limit": "--reset-limit",
    "cooldown_range": "--blacklist-cooldown-range",
    "spares": "--spares",
    "progress_timeout_seconds": "--progress-timeout-seconds",
    "replace_stuck_workers": "--replace-stuck-workers",
}
NOTE = "accepted, no effect in this version"


def given(options: Mapping[str, Any]) -> list[str]:
    """The names of those that have a value."""
    return [name for name in FLAGS if options.get(name)]


def given_without_driver(options: Mapping[str, Any]) -> list[str]:
    """The names of those that have a value although the job is not elastic."""
    if options.get("min_num_proc") is not None or options.get("host_discovery_script") is not None:
        return []
    return [name for name in ELASTIC_FLAGS if options.get(name) is not None]


def needs_driver(spelled: str, min_np: str, script: str) -> str:
    return f"{spelled} has no effect without {min_np} or {script}: the job is not elastic"


def sentence(spelled: str) -> str:
    return f"{spelled} is accepted, but has no effect in this version"
