# SPDX-License-Identifier: Apache-2.0
"""An import path of Horovod's launcher: what is not available here raises on use."""

from horovod.common.not_yet import NotYet, value


class AbortCommandRequest(NotYet): ...


class BasicTaskClient(NotYet): ...


class BasicTaskService(NotYet): ...


class CommandExitCodeRequest(NotYet): ...


class CommandExitCodeResponse(NotYet): ...


class CommandOutputNotCaptured(Exception):  # noqa: N818 - the contract's name
    """Never raised: what would raise it is not there yet."""


class NotifyInitialRegistrationCompleteRequest(NotYet): ...


class RegisterCodeResultRequest(NotYet): ...


class RunCommandRequest(NotYet): ...


class StreamCommandOutputRequest(NotYet): ...


class StreamCommandStdErrRequest(NotYet): ...


class StreamCommandStdOutRequest(NotYet): ...


class WaitForCommandExitCodeRequest(NotYet): ...


class WaitForCommandExitCodeResponse(NotYet): ...


WAIT_FOR_COMMAND_MIN_DELAY = value(__name__, "WAIT_FOR_COMMAND_MIN_DELAY")
