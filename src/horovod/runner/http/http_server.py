# SPDX-License-Identifier: Apache-2.0
"""An import path of Horovod's launcher: what is not available here raises on use. Nothing here speaks HTTP."""

from horovod.common.not_yet import NotYet, value
from horovod.runner.elastic.rendezvous import RendezvousHandler as RendezvousHandler
from horovod.runner.elastic.rendezvous import RendezvousServer as RendezvousServer

BAD_REQUEST = 400
OK = 200


class KVStoreHTTPServer(NotYet): ...


class KVStoreHandler(NotYet): ...


class KVStoreServer(NotYet): ...


class RendezvousHTTPServer(NotYet): ...


SINGLE_REQUEST_TIMEOUT = value(__name__, "SINGLE_REQUEST_TIMEOUT")
TIMEOUT = value(__name__, "TIMEOUT")
