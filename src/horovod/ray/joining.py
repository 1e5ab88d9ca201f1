# SPDX-License-Identifier: Apache-2.0
"""Functions that let a process of Ray become a rank and leave its world. They do not need Ray."""

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
# Ray's log monitor shows the text that follows this mark before all further lines of the process.
_NAME_FOR_LOGS = ":actor_name:"


def become_rank(variables: Mapping[str, str]) -> None:
    """Take the place that the variables describe. hvd.init() then connects to the other ranks.

    A process may be in several worlds one after another, so the variables of the previous one are removed.
    """
    leave_world()
    kept = {name: value for name, value in without_outer_place(os.environ).items() if name not in _PLACE}
    for name in [name for name in os.environ if name not in kept]:
        del os.environ[name]
    os.environ.update(variables)
    name_in_logs(variables)


def leave_world() -> None:
    """Leave the world, so that ranks that wait for this rank in a collective get an error.

    No effect outside a world.
    """
    context = sys.modules.get("horovod.common.context")
    if context is not None:
        context.default_context.shutdown()


def fail_world(error: BaseException) -> None:
    """Leave the world, and report this error to the other ranks if this rank caused it."""
    leaving = sys.modules.get("horovod.common.leaving")
    if leaving is not None:
        leaving.tell(error)
    leave_world()


def name_in_logs(variables: Mapping[str, str]) -> None:
    """Let Ray prefix the lines that this process prints with its rank (or birth id, if elastic) and host."""
    birth = variables.get(BIRTH_VARIABLE)
    who = f"worker {birth}" if birth is not None else f"rank {variables.get('HOROVOD_RANK', '?')}"
    for stream in (sys.stdout, sys.stderr):
        print(f"{_NAME_FOR_LOGS}{who} on {socket.gethostname()}", file=stream, flush=True)
