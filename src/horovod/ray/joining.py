# SPDX-License-Identifier: Apache-2.0
"""What a process of Ray calls to become a rank, and to stop being one. Needs nothing of Ray itself."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping

from horovod.common import place_variables
from horovod.common.joining.elastic_place import BIRTH_VARIABLE
from horovod.common.torchrun_variables import without_outer_place

_PLACE = (
    *place_variables.NAMES,
    *("HOROVOD_HOST_ADDRESS", "HOROVOD_ELASTIC", BIRTH_VARIABLE, place_variables.PLANNED),
)
# Ray's log monitor shows what follows it in front of all further lines of this process.
_NAME_FOR_LOGS = ":actor_name:"


def become_rank(variables: Mapping[str, str]) -> None:
    """Take the place that the variables describe; hvd.init() then meets the other ranks.

    A process may be used for several worlds, one after another: nothing is kept of the one before.
    """
    leave_world()
    kept = {name: value for name, value in without_outer_place(os.environ).items() if name not in _PLACE}
    for name in [name for name in os.environ if name not in kept]:
        del os.environ[name]
    os.environ.update(variables)
    name_in_logs(variables)


def leave_world() -> None:
    """Whoever waits for this rank in a collective hears that it is gone. Harmless outside a world."""
    context = sys.modules.get("horovod.common.context")
    if context is not None:
        context.default_context.shutdown()


def fail_world(error: BaseException) -> None:
    """Leave the world, and let the other ranks know this error, if it is one of this rank."""
    leaving = sys.modules.get("horovod.common.leaving")
    if leaving is not None:
        leaving.tell(error)
    leave_world()


def name_in_logs(variables: Mapping[str, str]) -> None:
    """Lines that this process prints begin with its rank (or the birth id of an elastic worker) and its host."""
    birth = variables.get(BIRTH_VARIABLE)
    who = f"worker {birth}" if birth is not None else f"rank {variables.get('HOROVOD_RANK', '?')}"
    for stream in (sys.stdout, sys.stderr):
        print(f"{_NAME_FOR_LOGS}{who} on {socket.gethostname()}", file=stream, flush=True)
