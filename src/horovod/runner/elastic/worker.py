# SPDX-License-Identifier: Apache-2.0
"""The worker's side of an elastic job under its public import path; its home is horovod.common.notifications."""

from horovod.common.notifications import HostUpdateResult, WorkerNotificationManager

__all__ = ["HostUpdateResult", "WorkerNotificationManager"]
