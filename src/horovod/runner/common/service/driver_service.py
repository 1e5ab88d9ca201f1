# SPDX-License-Identifier: Apache-2.0
"""An import path of Horovod's launcher: what is not available here raises on use."""

from horovod.common.not_yet import NotYet


class AllTaskAddressesRequest(NotYet): ...


class AllTaskAddressesResponse(NotYet): ...


class BasicDriverClient(NotYet): ...


class BasicDriverService(NotYet): ...


class RegisterTaskRequest(NotYet): ...


class RegisterTaskToTaskAddressesRequest(NotYet): ...
