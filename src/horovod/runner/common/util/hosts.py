# SPDX-License-Identifier: Apache-2.0
"""Old import path of horovod.launcher.start.hosts."""

from horovod.launcher.start.hosts import (
    HostInfo,
    SlotInfo,
    get_host_assignments,
    parse_host_files,
    parse_hosts,
    parse_hosts_and_slots,
)

__all__ = [
    "HostInfo",
    "SlotInfo",
    "get_host_assignments",
    "parse_host_files",
    "parse_hosts",
    "parse_hosts_and_slots",
]
