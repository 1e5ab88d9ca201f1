# SPDX-License-Identifier: Apache-2.0
"""Setup of a world: open the engine's listeners, meet the other ranks at the rendezvous, and connect to them."""

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
    """Error of hvd.init() if a rank was lost before it finished. The elastic driver then assigns a new place."""


@dataclass(frozen=True)
class Wishes:
    """Arguments of hvd.init(), and what an elastic worker brings along."""

    process_sets: Sequence[tuple[int, ...]] = ()
    by_communicator: bool = False  # True if some sets come from communicators; the sets of ranks may then differ
    comm: Any = None  # MPI communicator from which to make the world, or None
    mpi: str | None = None  # why MPI cannot move tensors here; empty if it can; None if the user has not asked for it
    heritage: Mapping[str, Any] | None = None  # process sets of an elastic worker from earlier generations, or None
    tuning: Mapping[str, int] | None = None  # values that the autotuner found in earlier generations


@dataclass(frozen=True)
class Started:
    """A connected world, and what the other ranks have reported."""

    world: World
    topology: Topology
    homogeneous: bool
    process_sets: Sequence[tuple[int, ...]] = ()  # sets that all ranks register, in this order
    jobs: bool = False  # True if MPI moves tensors where it can
    main: tuple[str, int] | None = None  # address of rank 0 and a free port there, or None
    # For an elastic job: the process sets that every rank has kept from earlier generations.
    heritages: Sequence[Mapping[str, Any]] = ()
    tuning: Mapping[str, int] | None = None  # values that the autotuner found in earlier generations
    hosts: Sequence[str] = ()  # host of each rank


def start(
    settings: Settings,
    topology: Topology,
    generation: int,
    wishes: Wishes,
    environ: Mapping[str, str],
    met: Callable[[], None],
) -> Started:
    """Join the world that `topology` describes. HorovodInitializationError (a ValueError) if that fails.

    Args:
        met: Called once all ranks have met. From then on the number of this generation is used up on all ranks, even if
            an error follows.
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
    """Connect to the rendezvous that the environment names, or to one that the ranks agree on."""
    if comm is not None:
        from horovod.common.joining.introduction import introduced_in

        with introduced_in(comm, topology, settings, environ) as introduction:
            yield introduction
        return
    of_outer_job = inside_our_job(environ)  # the environment names the rendezvous of the outer job
    if topology.by_foreign_launcher and (of_outer_job or not settings.text("HOROVOD_GLOO_RENDEZVOUS_ADDR")):
        # Imported late so that jobs of horovodrun start faster.
        from horovod.common.joining.introduction import introduced

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
    # The listeners open before the ranks meet, so the id must come from values that all ranks know already.
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
        tuning = infos[0].get("tuning")  # if any rank was in an earlier generation, rank 0 was
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
    """Return what the other ranks must know about this one."""
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
    """Return an id that all containers of a machine share, because they share its cores; "" if the kernel has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def peers(infos: Sequence[Mapping[str, Any]]) -> list[tuple[int, str, str, int, str, str]]:
    parts = ("host", "address", "port", "local_socket", "machine")
    return [(rank, *(info[part] for part in parts)) for rank, info in enumerate(infos)]


def _agree_on_mpi(infos: Sequence[Mapping[str, Any]], rank: int) -> bool:
    """Return True if MPI moves tensors, which requires that it can on all ranks.

    Otherwise warn on rank 0. It is not an error, because the setting may come from an old image.
    """
    words = [info.get("mpi") for info in infos]
    if all(word == "" for word in words):
        return True
    if rank == 0 and any(word is not None for word in words):
        other, word = next((other, word) for other, word in enumerate(words) if word != "")
        log.say_without_mpi(f"rank {other}: {word or 'it is not set there'}")
    return False


def _agreed_sets(infos: Sequence[Mapping[str, Any]], rank: int) -> list[tuple[int, ...]]:
    """Return the sets that all ranks register. Every rank gets equal infos, so either all ranks raise or none does."""
    if any(info["heritage"]["members"] for info in infos if "heritage" in info):
        return []  # the sets of the last generation are kept; new workers find their sets among them
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


_servers: dict[int, Server] = {}  # servers by port, kept after a shutdown, because ranks may call hvd.init() again


def serve(place: Rendezvous) -> None:
    from horovod.common.rendezvous.server import Server  # imported late because only rank 0 of few jobs serves

    if place.port not in _servers:
        server = Server(place.address, place.port, secret=place.secret)
        server.start()
        _servers[place.port] = server
