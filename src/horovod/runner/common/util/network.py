# SPDX-License-Identifier: Apache-2.0
"""An import path of Horovod's launcher: what is not available here raises on use."""

from horovod.common.not_yet import NotYet


class AckResponse(NotYet): ...


class AckStreamResponse(NotYet): ...


class BasicClient(NotYet): ...


class BasicService(NotYet): ...


class NoValidAddressesFound(Exception):  # noqa: N818 - the contract's name
    """Never raised: what would raise it is not there yet."""


class PingRequest(NotYet): ...


class PingResponse(NotYet): ...


class Wire(NotYet): ...
