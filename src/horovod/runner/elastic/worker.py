# SPDX-License-Identifier: Apache-2.0
"""The worker's side of an elastic job under its public import path; its home is horovod.common.notifications."""

from horovod.common.not_yet import NotYet
from horovod.common.notifications import HostUpdateResult as HostUpdateResult
from horovod.common.notifications import WorkerNotificationManager as WorkerNotificationManager

HOROVOD_GLOO_IFACE = "HOROVOD_GLOO_IFACE"
HOROVOD_GLOO_RENDEZVOUS_ADDR = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
HOROVOD_GLOO_RENDEZVOUS_PORT = "HOROVOD_GLOO_RENDEZVOUS_PORT"
HOROVOD_HOSTNAME = "HOROVOD_HOSTNAME"
HOROVOD_LOCAL_RANK = "HOROVOD_LOCAL_RANK"


class HostsUpdatedRequest(NotYet): ...


class WorkerNotificationClient(NotYet): ...


class WorkerNotificationService(NotYet): ...
