# SPDX-License-Identifier: Apache-2.0
"""An import path of Horovod's launcher: what is not available here raises on use."""

from horovod.common.not_yet import NotYet, value

BAD_REQUEST = 400
OK = 200


class KVStoreHTTPServer(NotYet): ...


class KVStoreHandler(NotYet): ...


class KVStoreServer(NotYet): ...


class RendezvousHTTPServer(NotYet): ...


class RendezvousHandler(NotYet): ...


class RendezvousServer(NotYet): ...


SINGLE_REQUEST_TIMEOUT = value(__name__, "SINGLE_REQUEST_TIMEOUT")
TIMEOUT = value(__name__, "TIMEOUT")
