# SPDX-License-Identifier: Apache-2.0
"""A worker of an elastic job: it has a birth id for life, and asks the driver for its place before each generation."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from horovod.common import place_variables
from horovod.common import topology as topology_module
from horovod.common.exceptions import HorovodInitializationError, HorovodInternalError, HorovodRemovedError
from horovod.common.joining.loss import Loss, loss_in
from horovod.common.lineage import SeenFile
from horovod.common.rendezvous.client import Connection, DismissedError, RendezvousError
from horovod.common.settings import Settings, load
from horovod.common.topology import Rendezvous, Topology, elastic_topology

BIRTH_VARIABLE = "HOROVOD_BIRTH_ID"
_LEFT = "Horovod has been shut down"
_RAISED = re.compile(r"rank \d{1,9} raised ")
_NAMED_LOSS = re.compile(r"rank (\d{1,9}) is lost")
_PATIENCE_S = 864_000.0  # the driver has time limits of its own, and its end closes the connection


def is_elastic(environ: Mapping[str, str]) -> bool:
    """Whether an elastic driver has started this process."""
    return bool(environ.get(BIRTH_VARIABLE))


def birth_id(environ: Mapping[str, str]) -> int:
    return topology_module.integer_of(BIRTH_VARIABLE, environ)


def worker_variables(birth: int, host: str, place: place_variables.HasPlace) -> dict[str, str]:
    """Return what the environment of one worker holds beside that of all workers of the job.

    Args:
        birth: The worker's number.
        host: The name of its host.
        place: The place that the driver plans for it.
    """
    return {
        **place_variables.planned(place),
        "HOROVOD_HOSTNAME": host,
        "HOROVOD_ELASTIC": "1",
        BIRTH_VARIABLE: str(birth),
    }


@dataclass(frozen=True)
class ElasticPlace:
    """`address`: where other hosts reach this worker; None: it knows that already.

    `seen`: the newest checkpoints that any worker of the job has seen.
    """

    topology: Topology
    generation: int
    address: str | None = None
    seen: tuple[SeenFile, ...] = ()

    def variables(self) -> dict[str, str]:
        """For scripts that read their place in the environment, as Horovod's workers may."""
        found = place_variables.variables(self.topology)
        return found if self.address is None else found | {"HOROVOD_HOST_ADDRESS": self.address}


def take_place(
    settings: Settings, environ: Mapping[str, str], lost: Loss | None, *, fresh: bool, seen: Sequence[SeenFile] = ()
) -> ElasticPlace:
    """Wait for the driver's word. `lost`: the loss that has ended this worker's last world, if it was that.

    `fresh`: this worker was never handed the state of the training. `seen`: the newest checkpoints it knows of.
    """
    try:
        place = _meeting_place(settings, environ)
        timeout_s = settings.number("HOROVOD_GLOO_TIMEOUT_SECONDS")
        with Connection.open(place.address, place.port, place.secret, timeout_s) as connection:
            packed = [one.packed() for one in seen]
            generation, given = connection.ask_for_place(birth_id(environ), _PATIENCE_S, lost, fresh=fresh, seen=packed)
    except DismissedError as error:
        raise HorovodRemovedError(f"this worker has left the job: {error}") from error
    except (OSError, RendezvousError) as error:
        raise HorovodInitializationError(f"hvd.init() failed: the elastic driver gave no place: {error}") from error
    address = given.pop("address", None)
    known = tuple(SeenFile.unpacked(one) for one in given.pop("seen", ()))
    return ElasticPlace(elastic_topology(environ, given), generation, address, known)


def meeting_limit_s(settings: Settings, environ: Mapping[str, str]) -> float:
    """For meeting the other ranks. In an elastic job each of them has just been given its place, for which it waited
    in hvd.init(): one that does not come is frozen, and its silence is worth no more than in training."""
    limit_s = settings.number("HOROVOD_GLOO_TIMEOUT_SECONDS")
    silence_s = settings.number("HOROVOD_PEER_TIMEOUT_SECONDS")
    return min(limit_s, silence_s) if is_elastic(environ) and silence_s else limit_s


def lost_rank_of(error: HorovodInternalError) -> int | None:
    """Who is to blame, also where a framework has passed on only the text.

    Nobody if a rank has left of its own accord: it may have heard of a loss first, and be busy with going back. Nor if
    it has raised: its process ends by itself, and the driver hears of that.
    """
    if _LEFT in str(error) or _RAISED.search(str(error)):
        return None
    if error.lost_rank is not None:
        return error.lost_rank
    found = _NAMED_LOSS.search(str(error))
    return int(found[1]) if found else None


def loss_of(error: HorovodInternalError) -> Loss | None:
    """Return the rank to blame and how it was lost; None if no rank is."""
    rank = lost_rank_of(error)
    return None if rank is None else loss_in(str(error), rank)


def _meeting_place(settings: Settings, environ: Mapping[str, str]) -> Rendezvous:
    return topology_module.rendezvous(elastic_topology(environ, {}), settings, environ)


def _connected(environ: Mapping[str, str], limit_s: float | None = None) -> Connection:
    settings = load(environ)
    place = _meeting_place(settings, environ)
    timeout_s = limit_s if limit_s is not None else settings.number("HOROVOD_GLOO_TIMEOUT_SECONDS")
    return Connection.open(place.address, place.port, place.secret, timeout_s)


def ask_to_stay(environ: Mapping[str, str]) -> None:
    """After SIGTERM: returns if the driver lets this worker train until its next commit. RendezvousError if not."""
    with _connected(environ) as connection:
        connection.ask_to_stay(birth_id(environ), load(environ).number("HOROVOD_GLOO_TIMEOUT_SECONDS"))


def report_seen(environ: Mapping[str, str], seen: Sequence[SeenFile]) -> None:
    """Tell the driver which checkpoints this worker sees: it must know even if this worker is lost at once."""
    with _connected(environ) as connection:
        packed = [one.packed() for one in seen]
        connection.report({"op": "report", "birth": birth_id(environ), "seen": packed}, _timeout_s(environ))


def report_failure(environ: Mapping[str, str], why: str) -> None:
    """Tell the driver that this worker is about to fail in a way in which its replacement would fail too."""
    with _connected(environ) as connection:
        connection.report({"op": "report", "birth": birth_id(environ), "fails": why}, _timeout_s(environ))


def report_leave(environ: Mapping[str, str], what: str, code: int, limit_s: float, *, blames_peer: bool) -> None:
    """Report to the driver that an exception ends this worker. Its process may take long to end.

    Args:
        environ: The environment of this process.
        what: What this worker has done, for example "raised ValueError: no such file".
        code: The exit code to expect.
        limit_s: How long to wait for the driver.
        blames_peer: Whether the exception followed from the loss of another rank.
    """
    message = {"op": "report", "birth": birth_id(environ), "leaves": what, "code": code, "blames_peer": blames_peer}
    with _connected(environ, limit_s) as connection:
        connection.report(message, limit_s)


def _timeout_s(environ: Mapping[str, str]) -> float:
    return load(environ).number("HOROVOD_GLOO_TIMEOUT_SECONDS")


def listen(
    environ: Mapping[str, str],
    handler: Callable[[int, float, int], None],
    progress: Callable[[bool], Mapping[str, Any]],
) -> object:
    """Pass on what the driver says of hosts, as (generation, time, what), from a thread that sleeps otherwise.

    It also tells the driver when that asks for progress, with the Python stack if it wants that. None without an
    elastic driver.
    """
    if not is_elastic(environ):
        return None
    connection = _connected(environ)
    birth = birth_id(environ)

    def hear() -> None:
        with connection, suppress(OSError, RendezvousError):  # the launcher has ended: the workers end with it
            for message in connection.listen(birth):
                if "ask" in message:
                    connection.tell({"op": "progress", "birth": birth, **progress(birth in message["stacks"])})
                elif "update" in message:
                    handler(message["generation"], message["timestamp"], message["update"])

    thread = threading.Thread(target=hear, name="horovod-elastic", daemon=True)
    thread.start()
    return thread
