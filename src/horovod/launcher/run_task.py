# SPDX-License-Identifier: Apache-2.0
"""Worker of `horovod.run`: fetch the function from the authenticated rendezvous, call it, and return the result."""

from __future__ import annotations

import os
import sys
import traceback

from horovod.common import leaving, place_variables, serialization
from horovod.common.joining.elastic_place import BIRTH_VARIABLE
from horovod.common.rendezvous.client import Connection
from horovod.common.topology import SECRET_VARIABLE, decode_secret, discover
from horovod.launcher.output.notebooks import learn_sources

PATH_KEY = "run/path"
FUNCTION_KEY = "run/function"
SOURCES_KEY = "run/sources"
_CONNECT_LIMIT_S = 30.0


def result_key(rank: int) -> str:
    return f"run/result/{rank}"


def error_key(worker: int) -> str:
    """Return the rendezvous key of a worker's error.

    Args:
        worker: The worker's rank, or its birth id in an elastic job, where ranks change.
    """
    return f"run/error/{worker}"


def main() -> int:
    # The rank comes from horovodrun's variables or, with use_mpi, from MPI's. An elastic worker has none until
    # hvd.init().
    rank = None if BIRTH_VARIABLE in os.environ else discover(os.environ).rank
    address, port = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    secret = decode_secret(os.environ[SECRET_VARIABLE])
    with Connection.open(address, port, secret, _CONNECT_LIMIT_S) as connection:
        path, function, sources = (connection.get(key) for key in (PATH_KEY, FUNCTION_KEY, SOURCES_KEY))
    if path is None or function is None or sources is None:
        raise RuntimeError("the rendezvous holds no function to run: start workers with horovod.run() only")
    # Modules that the caller can import must be importable here too, because the function may refer to them.
    sys.path += [entry for entry in path.decode("utf-8", "surrogateescape").split("\0") if entry not in sys.path]
    value, code = b"", 0
    try:
        learn_sources(serialization.loads(sources))
        func, args, kwargs = serialization.loads(function)
        value = serialization.dumps(func(*args, **kwargs))
    except Exception as error:
        own_frame = error.__traceback__  # leave out the frame of this function, which does not help the user
        shown = own_frame.tb_next if own_frame is not None and own_frame.tb_next is not None else own_frame
        text = "".join(traceback.format_exception(type(error), error, shown))
        print(text, end="", file=sys.stderr, flush=True)
        leaving.tell(error)
        value, code = text.encode(errors="replace"), 1
    worker = rank if rank is not None else int(os.environ[BIRTH_VARIABLE])
    if rank is None:  # hvd.init() has set the rank of this elastic worker
        rank = int(place_variables.known(os.environ).get("HOROVOD_RANK") or worker)
    key = result_key(rank) if code == 0 else error_key(worker)
    # Open a new connection, because the first one may have been idle for days and closed by the network.
    with Connection.open(address, port, secret, _CONNECT_LIMIT_S) as connection:
        connection.put(key, value)
    return code


if __name__ == "__main__":
    sys.exit(main())
