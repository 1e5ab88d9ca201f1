# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in a process group, as exceptions that both torch's and Horovod's handlers catch."""

from __future__ import annotations

from torch.distributed import DistBackendError

from horovod._engine import EngineError
from horovod.common.exceptions import HorovodInternalError, HorovodMismatchError
from horovod.common.handles import translate


class ProcessGroupError(DistBackendError, HorovodInternalError):
    """A peer died, a link broke, an operation timed out, or the group was destroyed while it was pending."""

    def __init__(self, *args: object, lost_rank: int | None = None, operation: str | None = None) -> None:
        HorovodInternalError.__init__(self, *args, lost_rank=lost_rank, operation=operation)


class ProcessGroupMismatchError(ProcessGroupError, HorovodMismatchError):
    """The ranks' n-th operations differ: another collective, dtype or size. A bug in the script."""


def from_engine(error: EngineError, operation: str, where: str) -> Exception:
    """The exception for an engine error. `where` tells which group, and what its ranks are called globally."""
    text = f"{operation}: {error.args[1]}{where}"
    known = translate(EngineError(error.args[0], text, error.args[2]), operation)
    if not isinstance(known, HorovodInternalError):
        return known
    kind = ProcessGroupMismatchError if isinstance(known, HorovodMismatchError) else ProcessGroupError
    return kind(text, lost_rank=known.lost_rank, operation=operation)
