# SPDX-License-Identifier: Apache-2.0
"""Flags of horovodrun, and arguments of horovod.run, that are accepted but that nothing reads yet; or that are refused.

Those that stand for a setting are not here: the table of settings knows them, and rank 0 speaks of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# By the names of horovod.run, or of the parsed flags.
FLAGS = {
    "disable_cache": "--disable-cache",
    "max_num_proc": "--max-np",
    "slots": "--slots-per-host",
    "elastic_timeout": "--elastic-timeout",
    "reset_limit": "--reset-limit",
    "cooldown_range": "--blacklist-cooldown-range",
}
NOTE = "accepted, no effect in this version"

# Those that a job does not start with, for it would not be what was asked for.
REFUSED = ("min_num_proc", "host_discovery_script")
REFUSED_NOTE = "refused: not available in this version"


def given(options: Mapping[str, Any]) -> list[str]:
    """The names of those that have a value."""
    return [name for name in FLAGS if options.get(name)]


def sentence(spelled: str) -> str:
    return f"{spelled} is accepted, but has no effect in this version"
