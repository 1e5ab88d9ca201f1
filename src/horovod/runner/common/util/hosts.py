# SPDX-License-Identifier: Apache-2.0
"""Old import path of horovod.runner.hosts."""

from horovod.runner.hosts import (
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
