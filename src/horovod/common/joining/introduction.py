# SPDX-License-Identifier: Apache-2.0
"""Exchange of the rendezvous' address among ranks of mpirun, srun and torchrun: rank 0 serves it and sends the address.

    torchrun          a note in the store that torchrun serves for its workers
    one host          a note that only this user can read, in a file named after the job
    several hosts     an MPI broadcast if mpi4py is installed, else a note in a directory that the hosts share

A note holds the address of the rendezvous and a secret made for this job. It is removed once all ranks have met. If a
crashed job has left a note, the handshake fails, and the ranks read again until rank 0 has replaced it.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from horovod.common import mpi_library
from horovod.common.exceptions import HorovodInitializationError
from horovod.common.joining import note
from horovod.common.joining.identity import job_identity
from horovod.common.joining.interfaces import LOOPBACK, address_towards, interface_address, reachable_address
from horovod.common.joining.torchrun_note import TorchrunNote
from horovod.common.rendezvous.client import Connection, RendezvousError
from horovod.common.rendezvous.protocol import make_secret
from horovod.common.rendezvous.server import Server
from horovod.common.settings import Settings
from horovod.common.topology import SECRET_VARIABLE, TORCHRUN, Rendezvous, Topology, decode_secret

_LOOK_AGAIN_S = 0.01
_TRY_S = 1.0  # limit of one connection to the address in a note, which may be from a crashed job
_BROADCAST_BYTES = 1024


_known: Rendezvous | None = None  # the rendezvous from the first hvd.init(), which later ones use again


@contextmanager
def introduced(
    topology: Topology, settings: Settings, environ: Mapping[str, str]
) -> Iterator[tuple[Rendezvous, Connection]]:
    """Connect to this job's rendezvous, and keep the note until all ranks have met.

    Raise ValueError with a remedy if there is no way to find the rendezvous.
    """
    global _known
    timeout_s = settings.number("HOROVOD_GLOO_TIMEOUT_SECONDS")
    way = _way(topology, settings, environ)
    left: Note | None = None
    if _known is None and way != "mpi":
        of_torchrun = way == "torchrun"
        left = (
            TorchrunNote(topology.rank, environ, timeout_s)
            if of_torchrun
            else NoteFile(_note_path(topology, settings, environ))
        )
        place, connection = _by_note(left, topology, settings, environ)
    else:
        place = _known or _by_mpi(topology, settings, environ, time.monotonic() + timeout_s)
        connection = Connection.open(place.address, place.port, place.secret, timeout_s, by_rank_0=True)
    _known = place
    try:
        with connection:
            yield place, connection
    finally:
        if left is not None and topology.rank == 0:
            left.remove()


@contextmanager
def introduced_in(
    comm: Any, topology: Topology, settings: Settings, environ: Mapping[str, str]
) -> Iterator[tuple[Rendezvous, Connection]]:
    """Connect to a new rendezvous for the ranks of a communicator.

    Each call sets up a new one, because the communicator may be another one.
    """
    timeout_s = settings.number("HOROVOD_GLOO_TIMEOUT_SECONDS")
    place = _broadcast(comm, topology, settings, environ, time.monotonic() + timeout_s)
    with Connection.open(place.address, place.port, place.secret, timeout_s, by_rank_0=True) as connection:
        yield place, connection


def _way(topology: Topology, settings: Settings, environ: Mapping[str, str]) -> str:
    """Return how rank 0 sends the address.

    The choice depends only on values that are equal on all ranks, so that no rank waits for a broadcast alone.
    """
    asked = settings.text("HOROVOD_RENDEZVOUS")
    if asked in ("mpi", "file"):
        return asked
    if topology.source == TORCHRUN:
        return "torchrun"
    if topology.on_one_host or settings.text("HOROVOD_SHARED_DIR"):
        return "file"
    by_mpi = topology.source in ("Open MPI", "PMI") or "PMIX_RANK" in environ
    return "mpi" if by_mpi and importlib.util.find_spec("mpi4py") is not None else "file"


# ---- rank 0


def _serve(topology: Topology, settings: Settings, environ: Mapping[str, str]) -> Rendezvous:
    interfaces = settings.text("HOROVOD_GLOO_IFACE")
    address = interface_address(interfaces) if interfaces else _usual_address(topology, environ)
    given = environ.get(SECRET_VARIABLE)
    secret = decode_secret(given) if given else make_secret()
    server = Server(address, secret=secret)
    server.start()
    _servers.append(server)
    return Rendezvous(address, server.port, secret)


def _usual_address(topology: Topology, environ: Mapping[str, str]) -> str:
    if topology.on_one_host:
        return LOOPBACK
    # All ranks reach torchrun's store, so they also reach this host's address on the route there.
    if topology.source == TORCHRUN:
        towards = address_towards((environ["MASTER_ADDR"], 9))
        if towards is not None and not towards.startswith("127.") and towards != "::1":
            return towards
    return reachable_address()


_servers: list[Server] = []  # servers are kept after a shutdown, because the ranks may call hvd.init() again


# ---- by a note


class Note(Protocol):
    """Place where rank 0 leaves data for the other ranks. `read` returns None if there is nothing."""

    def write(self, data: bytes, /) -> None: ...
    def read(self) -> bytes | None: ...
    def remove(self) -> None: ...


class NoteFile:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def write(self, data: bytes) -> None:
        note.write(self._path, data)

    def read(self) -> bytes | None:
        return note.read(self._path)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def _note_path(topology: Topology, settings: Settings, environ: Mapping[str, str]) -> Path:
    identity = job_identity(topology, environ)
    if identity is None:
        raise HorovodInitializationError(
            f"This is rank {topology.rank} of {topology.size} (from {topology.source}), but no way was found to hand "
            "the ranks of this job a common secret: the launcher gives the job no name. Start it with horovodrun; or "
            "install mpi4py, and the ranks are introduced by MPI; or set HOROVOD_GLOO_RENDEZVOUS_ADDR, "
            f"HOROVOD_GLOO_RENDEZVOUS_PORT, HOROVOD_RENDEZVOUS=self and {SECRET_VARIABLE} on every rank."
        )
    shared = settings.text("HOROVOD_SHARED_DIR")
    usual = note.runtime_base(environ) if topology.on_one_host else Path.home()
    return note.private_directory(Path(shared) if shared else usual) / identity


def _by_note(
    left: Note, topology: Topology, settings: Settings, environ: Mapping[str, str]
) -> tuple[Rendezvous, Connection]:
    timeout_s = settings.number("HOROVOD_GLOO_TIMEOUT_SECONDS")
    if topology.rank == 0:
        place = _serve(topology, settings, environ)
        connection = Connection.open(place.address, place.port, place.secret, timeout_s, by_rank_0=True)
        left.write(_encode(place))
        return place, connection
    deadline = time.monotonic() + timeout_s
    problem = "there is none"
    while time.monotonic() < deadline:
        data = left.read()
        if data is not None:
            try:
                place = _decode(data)
                return place, Connection.open(place.address, place.port, place.secret, _TRY_S, by_rank_0=True)
            except RendezvousError as error:
                problem = str(error)
        time.sleep(_LOOK_AGAIN_S)
    raise RendezvousError(
        f"rank 0 has not left a usable note at {left} within {timeout_s:g} s ({problem}). Did rank 0 start? "
        + (
            ""
            if topology.on_one_host or not isinstance(left, NoteFile)
            else "Is this directory shared by all hosts (HOROVOD_SHARED_DIR names another)?"
        )
    )


def _encode(place: Rendezvous) -> bytes:
    secret = base64.b64encode(place.secret).decode()
    return json.dumps({"address": place.address, "port": place.port, "secret": secret}).encode()


def _decode(data: bytes) -> Rendezvous:
    try:
        found = json.loads(data)
        return Rendezvous(str(found["address"]), int(found["port"]), decode_secret(found["secret"]))
    except (ValueError, KeyError, TypeError) as error:
        raise RendezvousError(f"the note is damaged: {error}") from None


# ---- by MPI


def _by_mpi(topology: Topology, settings: Settings, environ: Mapping[str, str], deadline: float) -> Rendezvous:
    """Receive the rendezvous by one MPI broadcast. Loading mpi4py's MPI initialises MPI until the process ends."""
    try:
        mpi = mpi_library.load()
    except (ImportError, RuntimeError) as error:
        raise HorovodInitializationError(
            f"hvd.init() failed on rank {topology.rank}: mpi4py cannot be used ({error}). Install one that matches "
            "this mpirun, or set HOROVOD_RENDEZVOUS=file and HOROVOD_SHARED_DIR to a directory that all hosts share."
        ) from error
    world = mpi.COMM_WORLD
    if (world.Get_rank(), world.Get_size()) != (topology.rank, topology.size):
        raise HorovodInitializationError(
            f"hvd.init() failed: {topology.source} says rank {topology.rank} of {topology.size}, but mpi4py says rank "
            f"{world.Get_rank()} of {world.Get_size()}: it belongs to another MPI than the one that started this job "
            f"({mpi.get_vendor()[0]}). Install a matching mpi4py, or set HOROVOD_RENDEZVOUS=file."
        )
    return _broadcast(world, topology, settings, environ, deadline)


def _broadcast(
    comm: Any, topology: Topology, settings: Settings, environ: Mapping[str, str], deadline: float
) -> Rendezvous:
    mpi = mpi_library.load()
    buffer = bytearray(_BROADCAST_BYTES)
    if topology.rank == 0:
        data = _encode(_serve(topology, settings, environ))
        buffer[: len(data)] = data
    # The barrier keeps all ranks inside MPI until all have the message, because some libraries send only during calls.
    for begin in (lambda: comm.Ibcast([buffer, mpi.BYTE], root=0), comm.Ibarrier):
        request = begin()
        while not request.Test():
            if time.monotonic() > deadline:
                mpi_library.give_up()  # otherwise MPI would wait for the other ranks again when this process ends
                raise RendezvousError("rank 0 has not broadcast the rendezvous by MPI: did all ranks call hvd.init()?")
            time.sleep(_LOOK_AGAIN_S)
    return _decode(bytes(buffer).rstrip(b"\0"))
