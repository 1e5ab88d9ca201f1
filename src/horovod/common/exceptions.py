# SPDX-License-Identifier: Apache-2.0
"""Exceptions and warnings that users can catch.

RuntimeError
├── HorovodInternalError              the engine could not finish an operation; elastic training recovers from it
│   ├── HorovodMismatchError          ranks disagree about a tensor or a step: a bug, which elastic training re-raises
│   ├── HorovodNotInitializedError    (also a ValueError) used before hvd.init() or in a forked child
│   └── HorovodInitializationError    (also a ValueError) hvd.init() could not start the world
│       └── HorovodRemovedError       the elastic driver has removed this worker
├── HorovodCheckpointError            (also a ValueError) elastic training cannot resume from its checkpoints
└── HostsUpdatedInterrupt             the elastic driver changed the set of hosts; not a failure
ImportError
└── HorovodVersionMismatchError       never raised; kept for scripts that catch it
UserWarning
└── HorovodWarning                    a problem that the user can fix
    ├── HorovodRuntimeWarning         (also a RuntimeWarning) the job continues, but in another way than intended
    └── HorovodDeprecationWarning     (also a DeprecationWarning) an argument or a flag has a new name
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
    """Error of a call before hvd.init(), or in a forked child of an initialised process."""


class HorovodInitializationError(HorovodInternalError, ValueError):
    """Error of hvd.init(), for example because a rank did not come to the rendezvous in time."""


class HorovodRemovedError(HorovodInitializationError):
    """Error of hvd.init() in a worker that the elastic driver has removed.

    hvd.elastic.run then ends the process with exit code 0.
    """


class HorovodCheckpointError(RuntimeError, ValueError):
    """Error on all ranks if elastic training cannot resume, for example because every checkpoint is damaged."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 - the contract's name
    """Interrupt of a training because hosts joined or left an elastic job.

    `skip_sync` is True if the state need not be synchronised again.
    """

    def __init__(self, skip_sync: bool) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """Error for a library whose version is not the expected one. Never raised; kept for scripts that catch it."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version


class HorovodWarning(UserWarning):
    """Warning about a problem that the user can fix, for example gradients that are reduced twice."""


class HorovodRuntimeWarning(HorovodWarning, RuntimeWarning):
    """Warning that the job continues in another way than intended, for example without shared memory."""


class HorovodDeprecationWarning(HorovodWarning, DeprecationWarning):
    """Warning about an argument or a flag with a new name, for example average=True."""


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    return f"{name} {installed_version} is installed, but version {version} was expected."
