# SPDX-License-Identifier: Apache-2.0
"""Exceptions of process groups, which both torch's and Horovod's handlers catch."""

from __future__ import annotations

from torch.distributed import DistBackendError

from horovod._engine import EngineError
from horovod.common.exceptions import HorovodInternalError, HorovodMismatchError
from horovod.common.handles import translate


class ProcessGroupError(DistBackendError, HorovodInternalError):
    """Failure of a peer, connection or operation, a timeout, or the end of the group while an operation was pending."""

    def __init__(self, *args: object, lost_rank: int | None = None, operation: str | None = None) -> None:
        HorovodInternalError.__init__(self, *args, lost_rank=lost_rank, operation=operation)


class ProcessGroupMismatchError(ProcessGroupError, HorovodMismatchError):
    """Mismatch of the ranks' n-th operations in collective, dtype or size, which is a bug in the script."""


def from_engine(error: EngineError, operation: str, where: str) -> Exception:
    """Return the exception for an engine error. `where` names the group and the global ranks of its members."""
    text = f"{operation}: {error.args[1]}{where}"
    known = translate(EngineError(error.args[0], text, error.args[2]), operation)
    if not isinstance(known, HorovodInternalError):
        return known
    kind = ProcessGroupMismatchError if isinstance(known, HorovodMismatchError) else ProcessGroupError
    return kind(text, lost_rank=known.lost_rank, operation=operation)
