# SPDX-License-Identifier: Apache-2.0
"""An import path of Horovod's launcher: what is not available here raises on use."""

from horovod.common.not_yet import NotYet

FAILURE = "FAILURE"
READY = "READY"
SUCCESS = "SUCCESS"


class WorkerStateRegistry(NotYet): ...
