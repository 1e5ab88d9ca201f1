# SPDX-License-Identifier: Apache-2.0
"""The tree of exceptions that users can catch.

RuntimeError
├── HorovodInternalError              the engine could not finish an operation; elastic training recovers from it
│   ├── HorovodMismatchError          ranks disagree about a tensor or a step: a bug, which elastic training re-raises
│   ├── HorovodNotInitializedError    (also a ValueError) used before hvd.init() or in a forked child
│   └── HorovodInitializationError    (also a ValueError) hvd.init() could not bring the world to life
│       └── HorovodRemovedError       the elastic driver has no place for this worker any more
├── HorovodCheckpointError            (also a ValueError) elastic training cannot go on from its checkpoints
└── HostsUpdatedInterrupt             the elastic driver changed the set of hosts; not a failure
ImportError
└── HorovodVersionMismatchError
UserWarning
└── HorovodWarning                    whatever Horovod warns about, only where there is something to do about it
    ├── HorovodRuntimeWarning         (also a RuntimeWarning) the job goes on, but not as it was meant to
    └── HorovodDeprecationWarning     (also a DeprecationWarning) an argument or a flag has another name now
"""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A rank failed, a connection broke or the engine was shut down while an operation was pending.

    Elastic training recovers from this error. `lost_rank` is the rank that failed, or None if it is not known.
    `operation` is the name of the operation, or None.

    Args:
        *args: The message.
        lost_rank: Value of the attribute.
        operation: Value of the attribute.

    Example:
        >>> error = hvd.HorovodInternalError('rank 1 was lost', lost_rank=1)
        >>> error.lost_rank  # on 2 ranks: 1
    """

    def __init__(self, *args: object, lost_rank: int | None = None, operation: str | None = None) -> None:
        super().__init__(*args)
        self.lost_rank = lost_rank
        self.operation = operation


class HorovodMismatchError(HorovodInternalError):
    """Ranks disagree about a tensor or a step.

    For example, rank 0 reduces float32 of shape (3,) and rank 1 float64 of shape (4,) under one name. Every rank of the
    process set raises it, and the next operation works. Elastic training does not recover from it.

    Args:
        *args: The message.
        lost_rank: Value of the attribute.
        operation: Value of the attribute.

    Example:
        >>> issubclass(hvd.HorovodMismatchError, hvd.HorovodInternalError)  # on 2 ranks: True
    """


class HorovodNotInitializedError(HorovodInternalError, ValueError):
    """hvd.rank() stands above hvd.init() in the script, or a data loader's forked child calls hvd.allreduce()."""


class HorovodInitializationError(HorovodInternalError, ValueError):
    """A rank did not come to the rendezvous in time, or the ranks were started with different process sets."""


class HorovodRemovedError(HorovodInitializationError):
    """The host of a worker was taken away from an elastic job; hvd.elastic.run then ends the process with code 0."""


class HorovodCheckpointError(RuntimeError, ValueError):
    """All ranks raise it: every checkpoint is damaged, or the folder is not there on the host of the new rank 0."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 - the contract's name
    """A host joined or left an elastic job; `skip_sync` says that the state need not be synchronised again."""

    def __init__(self, skip_sync: bool) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A library has a different version from the one expected. Kept for scripts that catch it; never raised here."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version


class HorovodWarning(UserWarning):
    """optimizer.step() comes after optimizer.synchronize(), so gradients are reduced twice."""


class HorovodRuntimeWarning(HorovodWarning, RuntimeWarning):
    """There is no room for an array in shared memory, or a variable that looks like a setting is not one."""


class HorovodDeprecationWarning(HorovodWarning, DeprecationWarning):
    """A script still says average=True, as in Horovod before 0.19."""


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    return f"{name} {installed_version} is installed, but version {version} was expected."
