# SPDX-License-Identifier: Apache-2.0
"""Elastic training: a state that is saved, restored and sent to new workers, and the loop around training.

Framework APIs add states for their models. The driver of an elastic job is in horovod.launcher.elastic.
"""

from __future__ import annotations

import copy
import functools
import os
import queue
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from horovod.common.context import default_context
from horovod.common.exceptions import (
    HorovodCheckpointError,
    HorovodInitializationError,
    HorovodInternalError,
    HorovodMismatchError,
    HorovodNotInitializedError,
    HorovodRemovedError,
    HostsUpdatedInterrupt,
)
from horovod.common.joining import elastic_place
from horovod.common.lineage import NO_CALL, CommitId, start_lineage
from horovod.common.log import logger
from horovod.common.notifications import Handler, HostUpdateResult, WorkerNotificationManager
from horovod.common.objects import allgather_object
from horovod.common.preemption import leaves_at_commit
from horovod.common.progress import Progress
from horovod.common.rendezvous.protocol import RendezvousError
from horovod.common.settings import load
from horovod.common.slots import CopyLeaf, Slots
from horovod.common.sync_decision import LoadAttempt, SyncDecision, SyncReport, decide_sync

if TYPE_CHECKING:
    from horovod.common.checkpoint import Checkpoint


def _listen(handler: Handler) -> object:
    """Pass on the driver's messages about the current world only.

    Messages that arrive between two worlds are dropped, because the driver repeats them.
    """

    def in_time(generation: int, timestamp: float, update_res: int) -> None:
        if generation == default_context.generation:
            handler(timestamp, update_res)

    return elastic_place.listen(os.environ, in_time, lambda with_stack: _progress.told(with_stack=with_stack))


_progress = Progress(default_context)
notification_manager = WorkerNotificationManager(_listen)

# Errors after which another attempt would only hide the cause: bugs, and a world that could not be set up again.
_NOT_A_LOST_WORKER = (HorovodMismatchError, HorovodNotInitializedError, HorovodInitializationError)


class State:
    """State of a training that must survive the loss of workers.

    Subclasses define it by `save`, `restore` and `sync`.

    Args:
        bcast_object: Function that returns rank 0's object on every rank.
        get_rank: Function that returns this worker's rank.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.SimpleQueue[tuple[float, int]] = queue.SimpleQueue()
        self._reset_callbacks: list[Callable[[], object]] = []
        self._checkpoint: Checkpoint | None = None

    # Id of the last commit, or None until this worker has the training's state. Its name begins with _ because all
    # other attributes are the user's values.
    _commit_id: CommitId | None = None

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Add functions to call after the set of workers has changed, for example to adapt a learning rate.

        Args:
            callbacks: The functions, which take no arguments.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Adapt to the new set of workers: call reset(), then the reset callbacks.

        hvd.elastic.run calls this after the workers have met in a new world.
        """
        self._take_messages()  # the new world already accounts for these hosts
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Record that hosts came or went.

        This is called on any thread when the driver sends the message.

        Args:
            timestamp: When the hosts changed.
            update_res: 1 if hosts were removed, 2 if added, 3 for both.
        """
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Save the state in memory, and let the set of workers change if hosts came or went.

        Every rank must call this. After a failure, training goes on from the last commit.

        Raises:
            HostsUpdatedInterrupt: Hosts came or went. hvd.elastic.run handles it.
        """
        began_ns = time.monotonic_ns()
        self.save()
        if self._commit_id is not None:
            self._commit_id = self._commit_id.following()
        if self._checkpoint is not None:
            self._checkpoint.committed()
        default_context.show("COMMIT", began_ns, time.monotonic_ns())
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Let the set of workers change if hosts came or went, without saving the state.

        Every rank must call this.

        Raises:
            HostsUpdatedInterrupt: Rank 0 has a message that hosts came or went. hvd.elastic.run handles it.
        """
        _progress.commits += 1
        update = HostUpdateResult.no_update
        for _, update_res in self._take_messages():
            update |= update_res
        update = self._bcast_object(update)
        if update != HostUpdateResult.no_update:
            raise HostsUpdatedInterrupt(skip_sync=update == HostUpdateResult.removed)

    def _take_messages(self) -> list[tuple[float, int]]:
        messages = []
        while not self._host_messages.empty():
            messages.append(self._host_messages.get())
        return messages

    def save(self) -> None:
        """Keep a copy of the state in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Return to the state that was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Replace the state of all workers by rank 0's."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt to a new set of workers, before the reset callbacks are called."""

    # Methods for checkpoints on disk (hvd.elastic.checkpoint). A user's own subclass need not have them.

    def use_checkpoint(self, checkpoint: Checkpoint | None) -> None:
        """Write commits to disk.

        hvd.elastic.checkpoint() calls this.

        Args:
            checkpoint: What writes them, or None to stop.
        """
        self._checkpoint = checkpoint

    def pin_commit(self) -> dict[str, Any]:
        """Return the last commit by name, for writing it to disk.

        It does not change until release_commit() is called, even if other commits follow.

        Returns:
            The values of the commit, by name.

        Raises:
            NotImplementedError: This kind of state cannot be written to disk.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be written to disk: it has no pin_commit")

    def release_commit(self) -> None:
        """Release the pinned commit.

        This may be called on any thread.
        """

    def load_commit(self, content: dict[str, Any]) -> None:
        """Replace the state by a commit of an earlier job, and save it.

        Args:
            content: What pin_commit() returned in that job.

        Raises:
            ValueError: The commit does not fit the state.
            NotImplementedError: This kind of state cannot be read from disk.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be read from disk: it has no load_commit")


def finish_checkpoint(state: State) -> None:
    """Write the last commit to disk at the end of training."""
    found = getattr(state, "_checkpoint", None)
    if found is not None:
        found.finish()


def check_names(what: str, found: Iterable[str], expected: Iterable[str]) -> None:
    """Raise ValueError unless a checkpoint has exactly the names that the state has."""
    if set(found) != set(expected):
        raise ValueError(
            f"The checkpoint does not fit the state: it has the {what} {sorted(found)}, "
            f"and the state {sorted(expected)}"
        )


class ObjectState(State):
    """State of Python values. Every keyword argument becomes an attribute.

    `sync` sends what rank 0 *saved* last. Later changes are lost on all ranks.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        super().__init__(bcast_object, get_rank)
        self._names = list(kwargs)
        self._values = Slots(self._copy_leaf)
        for name, value in kwargs.items():
            setattr(self, name, value)
        ObjectState._prepare(self)
        ObjectState._keep(self)

    # Function that copies a framework's arrays among the values; None if they are copied like any Python object.
    _copy_leaf: CopyLeaf | None = None

    @property
    def _saved_state(self) -> dict[str, Any]:
        found: dict[str, Any] = self._values.current
        return found

    def save(self) -> None:
        self._prepare()
        self._keep()

    def _prepare(self) -> None:
        """Copy all values. The previous commit is kept until `_keep`, which cannot fail."""
        values = {name: getattr(self, name) for name in self._names}
        try:
            self._values.prepare(values)
        except TypeError:
            for name, value in values.items():
                _copied(name, value)  # raises an error that names the value
            raise

    def _keep(self) -> None:
        self._values.keep()

    def restore(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, _copied(name, value))

    def pin_commit(self) -> dict[str, Any]:
        return {"values": self._values.pin()}

    def release_commit(self) -> None:
        self._values.release()

    def load_commit(self, content: dict[str, Any]) -> None:
        check_names("values", content["values"], self._names)
        self._values.put(content["values"])
        ObjectState.restore(self)

    def sync(self) -> None:
        if self._saved_state:
            received = self._bcast_object(self._saved_state)
            if received is not self._saved_state:
                self._values.put(received)
            ObjectState.restore(self)


def _copied(name: str, value: Any) -> Any:
    """Return a copy that is independent of later changes to lists and dicts in place."""
    try:
        return copy.deepcopy(value)
    except TypeError as error:
        raise TypeError(f"The elastic state cannot keep {name!r}: {error}. Leave it out of the state") from error


def run_fn(func: Callable[..., Any], reset: Callable[[], object]) -> Callable[..., Any]:
    """Wrap `func(state, ...)` so that it restarts from the last commit after workers were lost or added.

    Args:
        reset: Leaves the world and joins the next one with the other workers.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        notification_manager.init()
        notification_manager.register_listener(state)
        needs_sync, needs_reset = True, False
        try:
            while True:
                try:
                    if needs_reset:
                        reset()
                        state.on_reset()
                        needs_reset = False
                    decision = _agree(state, needs_sync)
                    if decision.needs_sync:
                        state.sync()
                    state._commit_id = decision.commit
                    default_context.elastic.has_state = True
                    result = func(state, *args, **kwargs)
                    finish_checkpoint(state)
                    return result
                except HorovodRemovedError as error:
                    logger.info("%s", error)
                    raise SystemExit(0) from None  # the driver asked this worker to leave, which is not a failure
                except _NOT_A_LOST_WORKER:
                    raise
                except HorovodInternalError as error:
                    default_context.elastic.note_loss(error)
                    state.restore()
                    needs_sync = True
                except HostsUpdatedInterrupt as interrupt:
                    needs_sync = not interrupt.skip_sync
                needs_reset = True
        finally:
            notification_manager.remove_listener(state)

    return _leaving_at_commit(wrapper)


def _leaving_at_commit(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a training function so that a worker of an elastic job that gets SIGTERM leaves at its next commit."""

    @functools.wraps(wrapper)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not elastic_place.is_elastic(os.environ):
            return wrapper(*args, **kwargs)
        grace_s = load(os.environ).number("HOROVOD_PREEMPTION_GRACE_SECONDS")
        with leaves_at_commit(lambda: elastic_place.ask_to_stay(os.environ), grace_s):
            return wrapper(*args, **kwargs)

    return guarded


def _agree(state: State, needs_sync: bool) -> SyncDecision:
    """Decide with all ranks whether they synchronise, and with what state.

    A rank that just started needs a sync even if the others do not. If rank 0 would send a state without the progress
    of this training, raise HorovodCheckpointError on all ranks.
    """
    report = _report(state, needs_sync)
    reports = allgather_object(report, "elastic.sync") if default_context.is_initialized else [report]
    decision = decide_sync(reports)
    if decision.error:
        if default_context.is_initialized:
            # Wait until every rank has received the reports, because the first rank that raises ends the world.
            with suppress(HorovodInternalError):
                allgather_object(None, "elastic.sync.error")
        if elastic_place.is_elastic(os.environ):
            # If the driver cannot be reached, it has ended, and this worker ends too.
            with suppress(OSError, RendezvousError):
                elastic_place.report_failure(os.environ, decision.error)
        raise HorovodCheckpointError(decision.error)
    return decision


def _report(state: State, needs_sync: bool) -> SyncReport:
    """Return what this rank has, for the other ranks. Rank 0 loads a checkpoint first if it lacks the state."""
    context, found = default_context, getattr(state, "_checkpoint", None)
    # A worker that has the state and uses no checkpoint reports no call, because files that other workers saw may
    # belong to an earlier training of this program.
    call = found.call if found is not None else NO_CALL if context.elastic.has_state else 0
    if (commit := getattr(state, "_commit_id", None)) is not None:
        return SyncReport(needs_sync, call, commit)
    attempt = None
    if not context.is_initialized or context.topology.rank == 0:
        attempt = found.load() if found is not None else LoadAttempt(start_lineage())
    newest, lineages = found.look() if found is not None else (None, frozenset())
    return SyncReport(needs_sync, call, None, attempt, newest, context.elastic.seen_files.get(call), lineages)
