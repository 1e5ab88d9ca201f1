# SPDX-License-Identifier: Apache-2.0
"""An import path of Horovod's launcher: what is not available here raises on use."""

from horovod.common.not_yet import NotYet


class HorovodRunTaskClient(NotYet): ...


class HorovodRunTaskService(NotYet): ...


class TaskToTaskAddressCheckFinishedSignal(NotYet): ...


class TaskToTaskAddressCheckFinishedSignalResponse(NotYet): ...
