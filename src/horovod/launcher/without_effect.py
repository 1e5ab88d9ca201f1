# SPDX-License-Identifier: Apache-2.0
"""Flags of horovodrun and arguments of horovod.run that have no effect, or only in elastic jobs.

Flags that stand for a setting are not listed here: rank 0 logs settings that have no effect.
"""

from __future__ import annotations

from horovod.launcher.options import JobOptions

# Accepted flags without any effect: name in horovod.run, and the flag.
FLAGS = {
    "disable_cache": "--disable-cache",
}
# Flags that have an effect only in elastic jobs: name in horovod.run, and the flag.
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


def given(options: JobOptions) -> list[str]:
    """Return the names in FLAGS that were given a value."""
    names = options.given_names()
    return [name for name in FLAGS if name in names]


def given_without_driver(options: JobOptions) -> list[str]:
    """Return the names in ELASTIC_FLAGS that were given a value although the job is not elastic."""
    names = options.given_names()
    return [] if options.is_elastic else [name for name in ELASTIC_FLAGS if name in names]


def needs_driver(spelled: str, min_np: str, script: str) -> str:
    return f"{spelled} has no effect without {min_np} or {script}: the job is not elastic"


def sentence(spelled: str) -> str:
    return f"{spelled} is accepted, but has no effect in this version"
