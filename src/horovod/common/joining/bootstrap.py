# SPDX-License-Identifier: Apache-2.0
"""Brings a world to life: opens the engine's listeners, meets the other ranks, connects to them."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod._engine import EngineError, World
from horovod.common import log, nccl_library, stacks, waits
from horovod.common import topology as topology_module
from horovod.common.exceptions import HorovodInitializationError
from horovod.common.joining.elastic_place import is_elastic, meeting_limit_s
from horovod.common.joining.interfaces import LOOPBACK, check_interfaces, interface_address, interface_names
from horovod.common.rendezvous.client import Connection, MeetAgainError, RendezvousError
from horovod.common.settings import Settings
from horovod.common.topology import Rendezvous, Topology
from horovod.common.torchrun_variables import inside_our_job, main_port

if TYPE_CHECKING:
    from horovod.common.rendezvous.server import Server


class WorldFailedError(HorovodInitializationError):
    """A rank was lost between its arrival and the end of hvd.init(); an elastic driver has another place."""


@dataclass(frozen=True)
class Wishes:
    """What hvd.init() was asked for, beside settings."""

    process_sets: Sequence[tuple[int, ...]] = ()
    by_communicator: bool = False  # some of the sets: they may differ between ranks, each of which knows only its own
    comm: Any = None  # of MPI, if the world is made from one
    mpi: str | None = None  # why MPI cannot move tensors here; empty if it can; None: nobody asked for it
    heritage: Mapping[str, Any] | None = None  # of a worker of an elastic job: what it has from earlier generations
    tuning: Mapping[str, int] | None = None  # ... and what the autotuner found there


@dataclass(frozen=True)
class Started:
    """A connected world, and what was learnt from the other ranks."""

    world: World
    topology: Topology
    homogeneous: bool
    process_sets: Sequence[tuple[int, ...]] = ()  # that all ranks register, in this order
    jobs: bool = False  # whether MPI moves what it can
    main: tuple[str, int] | None = None  # rank 0's address, and a port that is free there; None: nobody asked
    heritages: Sequence[Mapping[str, Any]] = ()  # in an elastic job: what every rank has from earlier generations
    tuning: Mapping[str, int] | None = None  # ... and what the autotuner found there
    hosts: Sequence[str] = ()  # of all ranks


def start(
    settings: Settings,
    topology: Topology,
    generation: int,
    wishes: Wishes,
    environ: Mapping[str, str],
    met: Callable[[], None],
) -> Started:
    """Join the world that `topology` describes. HorovodInitializationError (a ValueError) if that fails.

    `met` is called once all ranks have met, whatever comes of it: this generation is then used up for all of them.
    """
    failed = WorldFailedError if is_elastic(environ) else HorovodInitializationError
    interfaces = settings.text("HOROVOD_GLOO_IFACE")
    if interfaces:
        check_interfaces(interface_names(interfaces))
    try:
        if topology.size == 1:
            met()
            return _start_alone(settings, topology, generation, environ, wishes)
        with _introduced(settings, topology, wishes.comm, environ) as introduction:
            return _start_together(settings, topology, generation, wishes, introduction, environ, met)
    except EngineError as error:
        lost = error.args[2] if error.args[2] >= 0 else None
        raise failed(f"hvd.init() failed on rank {topology.rank}: {error.args[1]}", lost_rank=lost) from error
    except MeetAgainError as error:
        text = f"hvd.init() failed on rank {topology.rank}: {error}"
        raise WorldFailedError(text, lost_rank=error.missing_rank) from error
    except (OSError, RendezvousError) as error:
        raise HorovodInitializationError(f"hvd.init() failed on rank {topology.rank}: {error}") from error


def _start_alone(
    settings: Settings, topology: Topology, generation: int, environ: Mapping[str, str], wishes: Wishes
) -> Started:
    world = open_world(settings, topology, generation, LOOPBACK, secrets.token_hex(16), secrets.token_bytes(32))
    if wishes.tuning:
        world.use_tuning(**wishes.tuning)
    world.connect(peers([introduce(world, topology, LOOPBACK)]), settings.number("HOROVOD_GLOO_TIMEOUT_SECONDS"))
    if wishes.mpi:
        log.say_without_mpi(wishes.mpi)
    main = LOOPBACK, main_port(environ)
    heritages = () if wishes.heritage is None else (wishes.heritage,)
    hosts = [topology.host]
    return Started(world, topology, True, wishes.process_sets, False, main, heritages, wishes.tuning, hosts)


@contextmanager
def _introduced(
    settings: Settings, topology: Topology, comm: Any, environ: Mapping[str, str]
) -> Iterator[tuple[Rendezvous, Connection]]:
    """A connection to the rendezvous that the environment names, or to one that the ranks agree on by themselves."""
    if comm is not None:
        from horovod.common.joining.introduction import introduced_in

        with introduced_in(comm, topology, settings, environ) as introduction:
            yield introduction
        return
    of_outer_job = inside_our_job(environ)  # the rendezvous that the environment names
    if topology.by_foreign_launcher and (of_outer_job or not settings.text("HOROVOD_GLOO_RENDEZVOUS_ADDR")):
        from horovod.common.joining.introduction import introduced  # late: jobs of horovodrun start quicker without it

        with introduced(topology, settings, environ) as introduction:
            yield introduction
        return
    place = topology_module.rendezvous(topology, settings, environ)
    by_rank_0 = settings.text("HOROVOD_RENDEZVOUS") == "self"
    if by_rank_0 and topology.rank == 0:
        serve(place)
    timeout_s = settings.number("HOROVOD_GLOO_TIMEOUT_SECONDS")
    with Connection.open(place.address, place.port, place.secret, timeout_s, by_rank_0=by_rank_0) as connection:
        yield place, connection


def _start_together(
    settings: Settings,
    topology: Topology,
    generation: int,
    wishes: Wishes,
    introduction: tuple[Rendezvous, Connection],
    environ: Mapping[str, str],
    met: Callable[[], None],
) -> Started:
    timeout_s = meeting_limit_s(settings, environ)
    place, connection = introduction
    interface = settings.text("HOROVOD_GLOO_IFACE")
    address = settings.text("HOROVOD_HOST_ADDRESS") or (
        interface_address(interface) if interface else connection.local_address
    )
    # The listeners must be open before the ranks meet, so the id comes from what all ranks know already.
    world_id = hmac.new(place.secret, f"horovod world {place.port}".encode(), hashlib.sha256).hexdigest()[:32]
    world = open_world(settings, topology, generation, address, world_id, place.secret)
    try:
        info = introduce(world, topology, address) | {"process_sets": [list(ranks) for ranks in wishes.process_sets]}
        info |= {"sets_by_communicator": wishes.by_communicator, "mpi": wishes.mpi}
        if wishes.heritage is not None:
            info |= {"heritage": wishes.heritage, "tuning": wishes.tuning}
        info["main_port"] = main_port(environ) if topology.rank == 0 else None
        infos = connection.meet(topology.rank, topology.size, generation, info, timeout_s).infos
        met()
        process_sets = _agreed_sets(infos, topology.rank)
        jobs = _agree_on_mpi(infos, topology.rank)
        if jobs:
            world.use_jobs()
        tuning = infos[0].get("tuning")  # rank 0 was there before, if anybody was
        if tuning:
            world.use_tuning(**tuning)
        world.connect(peers(infos), timeout_s)
    except BaseException:
        world.close()
        raise
    hosts = [str(info["host"]) for info in infos]
    placed = topology_module.after_meeting(topology, hosts, [int(info["local_rank"]) for info in infos])
    main = str(infos[0]["address"]), int(infos[0].get("main_port") or 0)
    heritages = [info["heritage"] for info in infos] if wishes.heritage is not None else []
    is_homogeneous = topology_module.is_homogeneous(hosts)
    return Started(world, placed, is_homogeneous, process_sets, jobs, main, heritages, tuning, hosts)


def open_world(
    settings: Settings, topology: Topology, generation: int, address: str, world_id: str, secret: bytes
) -> World:
    found: dict[str, int | bytes] = {}
    if (core := topology_module.engine_core(topology, settings, os.environ)) is not None:
        found["engine_core"] = core
    if (bundled := nccl_library.bundled()) is not None:
        found["nccl_bundled"] = os.fsencode(bundled)
    if host_id := os.environ.get("NCCL_HOSTID"):
        found["nccl_host_id"] = os.fsencode(host_id)
    world = World(
        rank=topology.rank,
        size=topology.size,
        host=topology.host,
        listen_address=address,
        world_id=world_id,
        generation=generation,
        secret=secret,
        settings=settings.for_engine() | found,
    )
    world.tell_stack(stacks.main_stack)
    world.tell_block(waits.told)
    return world


def introduce(world: World, topology: Topology, address: str) -> dict[str, Any]:
    """What the other ranks must know about this one."""
    return {
        "rank": topology.rank,
        "host": topology.host,
        "address": address,
        "port": world.tcp_port,
        "local_socket": world.local_socket,
        "local_rank": topology.local_rank,
        "machine": _machine(),
    }


def _machine() -> str:
    """The same in all containers of a machine, which share its cores; "" where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def peers(infos: Sequence[Mapping[str, Any]]) -> list[tuple[int, str, str, int, str, str]]:
    parts = ("host", "address", "port", "local_socket", "machine")
    return [(rank, *(info[part] for part in parts)) for rank, info in enumerate(infos)]


def _agree_on_mpi(infos: Sequence[Mapping[str, Any]], rank: int) -> bool:
    """Whether MPI moves tensors: only if it can on all ranks. A value from an old image's build is not a failure."""
    words = [info.get("mpi") for info in infos]
    if all(word == "" for word in words):
        return True
    if rank == 0 and any(word is not None for word in words):
        other, word = next((other, word) for other, word in enumerate(words) if word != "")
        log.say_without_mpi(f"rank {other}: {word or 'it is not set there'}")
    return False


def _agreed_sets(infos: Sequence[Mapping[str, Any]], rank: int) -> list[tuple[int, ...]]:
    """Every rank sees the same infos, so either all of them refuse or none does."""
    if any(info["heritage"]["members"] for info in infos if "heritage" in info):
        return []  # those of the last generation go on; who is new finds its own among them
    if any(info.get("sets_by_communicator") for info in infos):
        every = [tuple(ranks) for info in infos for ranks in info["process_sets"]]
        return [ranks for ranks in dict.fromkeys(every) if len(ranks) < len(infos)]
    for other, info in enumerate(infos):
        if info["process_sets"] != infos[0]["process_sets"]:
            raise HorovodInitializationError(
                f"hvd.init() failed on rank {rank}: the ranks passed different process sets: "
                f"rank 0 {infos[0]['process_sets']} and rank {other} {info['process_sets']}"
            )
    return [tuple(ranks) for ranks in infos[0]["process_sets"]]


_servers: dict[int, Server] = {}  # by port; they outlive a shutdown, for the other ranks may initialise again later


def serve(place: Rendezvous) -> None:
    from horovod.common.rendezvous.server import Server  # late: only one rank of few jobs serves

    if place.port not in _servers:
        server = Server(place.address, place.port, secret=place.secret)
        server.start()
        _servers[place.port] = server
