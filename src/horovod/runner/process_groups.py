# SPDX-License-Identifier: Apache-2.0
"""Which process groups still have living members, read from /proc."""

from __future__ import annotations

import os


def living_groups() -> set[int]:
    """Ids of all process groups with a member that is not a zombie."""
    groups = {_group_if_alive(name) for name in os.listdir("/proc") if name.isdigit()}
    return {group for group in groups if group is not None}


def _group_if_alive(pid: str) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The command name, in parentheses, may hold anything: the fields begin after the last one.
            state, _parent, group = stat.read().rpartition(b")")[2].split()[:3]
    except (OSError, ValueError):
        return None
    return None if state in (b"Z", b"X") else int(group)
