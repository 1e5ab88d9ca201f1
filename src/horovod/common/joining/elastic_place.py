# SPDX-License-Identifier: Apache-2.0
"""Connection of an elastic worker to its driver. A worker keeps its id, and asks for its place in each generation."""

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
# Wait up to ten days, because the driver has its own time limits, and the connection closes when the driver ends.
_PATIENCE_S = 864_000.0


def is_elastic(environ: Mapping[str, str]) -> bool:
    """Return True if an elastic driver has started this process."""
    return bool(environ.get(BIRTH_VARIABLE))


def birth_id(environ: Mapping[str, str]) -> int:
    return topology_module.integer_of(BIRTH_VARIABLE, environ)


def worker_variables(birth: int, host: str, place: place_variables.HasPlace) -> dict[str, str]:
    """Return the environment variables of one worker, in addition to those of all workers of the job.

    Args:
        birth: The worker's id.
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
    """Place of a worker in one generation.

    Attributes:
        address: Address at which other hosts reach this worker; None if the environment has it already.
        seen: The newest checkpoints that any worker of the job has seen.
    """

    topology: Topology
    generation: int
    address: str | None = None
    seen: tuple[SeenFile, ...] = ()

    def variables(self) -> dict[str, str]:
        """Return the variables with this place, for scripts that read them as Horovod's workers may."""
        found = place_variables.variables(self.topology)
        return found if self.address is None else found | {"HOROVOD_HOST_ADDRESS": self.address}


def take_place(
    settings: Settings, environ: Mapping[str, str], lost: Loss | None, *, fresh: bool, seen: Sequence[SeenFile] = ()
) -> ElasticPlace:
    """Wait until the driver assigns a place to this worker.

    Args:
        lost: The loss that ended this worker's last world, if there was one.
        fresh: True if this worker has never received the training's state.
        seen: The newest checkpoints that this worker knows of.
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
        raise HorovodInitializationError(
            f"hvd.init() failed: the elastic driver did not admit this worker: {error}"
        ) from error
    address = given.pop("address", None)
    known = tuple(SeenFile.unpacked(one) for one in given.pop("seen", ()))
    return ElasticPlace(elastic_topology(environ, given), generation, address, known)


def meeting_limit_s(settings: Settings, environ: Mapping[str, str]) -> float:
    """Return the time limit for meeting the other ranks.

    In an elastic job every rank waited in hvd.init() for its place, so a rank that does not come is frozen. The limit
    is then no longer than HOROVOD_PEER_TIMEOUT_SECONDS, after which training would declare it lost.
    """
    limit_s = settings.number("HOROVOD_GLOO_TIMEOUT_SECONDS")
    silence_s = settings.number("HOROVOD_PEER_TIMEOUT_SECONDS")
    return min(limit_s, silence_s) if is_elastic(environ) and silence_s else limit_s


def lost_rank_of(error: HorovodInternalError) -> int | None:
    """Return the lost rank that the error names, or None. Parse the text if a framework passed on only the text.

    Return None if a rank shut down normally, because it may have noticed the loss of another rank first. Return None if
    a rank raised an exception, because its process ends and the driver notices that.
    """
    if _LEFT in str(error) or _RAISED.search(str(error)):
        return None
    if error.lost_rank is not None:
        return error.lost_rank
    found = _NAMED_LOSS.search(str(error))
    return int(found[1]) if found else None


def loss_of(error: HorovodInternalError) -> Loss | None:
    """Return the lost rank and how it was lost; None if the error names no lost rank."""
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
    """Ask the driver, after SIGTERM, whether this worker may train until its next commit.

    Raise RendezvousError if not.
    """
    with _connected(environ) as connection:
        connection.ask_to_stay(birth_id(environ), load(environ).number("HOROVOD_GLOO_TIMEOUT_SECONDS"))


def report_seen(environ: Mapping[str, str], seen: Sequence[SeenFile]) -> None:
    """Report to the driver which checkpoints this worker sees, so that it knows them even if this worker is lost."""
    with _connected(environ) as connection:
        packed = [one.packed() for one in seen]
        connection.report({"op": "report", "birth": birth_id(environ), "seen": packed}, _timeout_s(environ))


def report_failure(environ: Mapping[str, str], why: str) -> None:
    """Report to the driver that this worker fails in a way in which its replacement would fail too."""
    with _connected(environ) as connection:
        connection.report({"op": "report", "birth": birth_id(environ), "fails": why}, _timeout_s(environ))


def report_leave(environ: Mapping[str, str], what: str, code: int, limit_s: float, *, blames_peer: bool) -> None:
    """Report to the driver that an exception ends this worker. Its process may take long to end.

    Args:
        environ: The environment of this process.
        what: What this worker has done, for example "raised ValueError: no such file".
        code: The exit code to expect.
        limit_s: How long to wait for the driver.
        blames_peer: True if the exception followed from the loss of another rank.
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
    """Receive the driver's messages in a thread. Return the thread, or None without an elastic driver.

    Args:
        handler: Called with (generation, time, change) when hosts have come or gone.
        progress: Called with True if the driver wants the Python stack too; returns the progress report to send.
    """
    if not is_elastic(environ):
        return None
    connection = _connected(environ)
    birth = birth_id(environ)

    def hear() -> None:
        with connection, suppress(OSError, RendezvousError):  # if the launcher has ended, the workers end with it
            for message in connection.listen(birth):
                if "ask" in message:
                    connection.tell({"op": "progress", "birth": birth, **progress(birth in message["stacks"])})
                elif "update" in message:
                    handler(message["generation"], message["timestamp"], message["update"])

    thread = threading.Thread(target=hear, name="horovod-elastic", daemon=True)
    thread.start()
    return thread
