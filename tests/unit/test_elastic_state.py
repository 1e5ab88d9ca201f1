# SPDX-License-Identifier: Apache-2.0
"""Elastic states and the loop around a training function, in one process with a simulated world."""

import threading

import numpy as np
import pytest

from horovod.common import elastic
from horovod.common.elastic import HostUpdateResult, ObjectState, run_fn
from horovod.common.exceptions import (
    HorovodInitializationError,
    HorovodInternalError,
    HorovodMismatchError,
    HorovodNotInitializedError,
    HostsUpdatedInterrupt,
)


def alone(**values):
    return ObjectState(lambda value: value, lambda: 0, **values)


def test_keywords_are_attributes_that_can_be_saved_and_restored():
    state = alone(epoch=1, seen=[1])
    state.epoch = 2
    state.seen.append(2)
    state.restore()
    assert (state.epoch, state.seen) == (1, [1])
    state.epoch = 3
    state.seen.append(3)
    state.save()
    state.seen.append(4)
    state.restore()
    state.seen.append(5)  # the restored value is a copy too
    state.restore()
    assert (state.epoch, state.seen) == (3, [1, 3])


def test_sync_hands_out_what_rank_0_saved():
    root = alone(epoch=7, seen=[1])
    root.epoch = 8
    other = ObjectState(lambda value: root._saved_state, lambda: 1, epoch=0, seen=[])
    other.sync()
    assert (other.epoch, other.seen) == (7, [1])
    other.epoch = 9
    other.restore()
    assert other.epoch == 7
    root.sync()
    assert root.epoch == 7


def test_what_cannot_be_copied_is_named():
    with pytest.raises(TypeError, match="cannot keep 'lock'"):
        alone(lock=threading.Lock())


@pytest.mark.parametrize(
    ("updates", "skip_sync"),
    [
        ([HostUpdateResult.removed], True),
        ([HostUpdateResult.added], False),
        ([HostUpdateResult.removed, HostUpdateResult.added], False),
        ([HostUpdateResult.removed, HostUpdateResult.removed], True),
        ([HostUpdateResult.mixed], False),
    ],
)
def test_commit_saves_and_then_interrupts(updates, skip_sync):
    state = alone(epoch=0)
    for timestamp, update in enumerate(updates):
        elastic.notification_manager.register_listener(state)
        elastic.notification_manager.handle_hosts_updated(timestamp, update)
        elastic.notification_manager.remove_listener(state)
    state.epoch = 1
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.commit()
    assert caught.value.skip_sync is skip_sync
    state.epoch = 2
    state.restore()
    assert state.epoch == 1
    state.commit()  # each notification interrupts once


def test_rank_0_decides_for_all():
    state = ObjectState(lambda value: HostUpdateResult.no_update, lambda: 1, epoch=0)
    state.on_hosts_updated(1, HostUpdateResult.added)
    state.check_host_updates()
    told = ObjectState(lambda value: HostUpdateResult.added, lambda: 1, epoch=0)
    with pytest.raises(HostsUpdatedInterrupt):
        told.check_host_updates()


class Played(ObjectState):
    """State that logs what the loop does with it."""

    def __init__(self, log):
        self.log = log
        super().__init__(lambda value: value, lambda: 0, epoch=0)

    def sync(self):
        self.log.append("sync")
        super().sync()

    def restore(self):
        self.log.append("restore")
        super().restore()

    def reset(self):
        self.log.append("state.reset")


def play(*outcomes):
    """Run a function that ends with the given outcomes, one for each call; return the log and the result."""
    log, ends = [], list(outcomes)
    state = Played(log)
    state.register_reset_callbacks([lambda: log.append("callback")])

    def train(state, *args, **kwargs):
        log.append("train")
        state.epoch += 1
        end = ends.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end, state.epoch, args, kwargs

    wrapped = run_fn(train, lambda: log.append("reset"))
    assert wrapped.__name__ == "train"
    return log, wrapped(state, 1, two=2)


RESET = ["reset", "state.reset", "callback"]


def test_the_function_just_runs():
    assert play("done") == (["sync", "train"], ("done", 1, (1,), {"two": 2}))


def test_a_lost_worker_restores():
    log, (_, epoch, _, _) = play(HorovodInternalError("lost"), "done")
    assert log == ["sync", "train", "restore", *RESET, "sync", "train"]
    assert epoch == 1


def test_added_hosts_sync_and_removed_ones_do_not():
    log, (_, epoch, _, _) = play(HostsUpdatedInterrupt(True), HostsUpdatedInterrupt(False), "done")
    assert log == ["sync", "train", *RESET, "train", *RESET, "sync", "train"]
    assert epoch == 1  # after the removal the state keeps 1; after the addition all ranks return to what rank 0 saved


def test_a_loss_after_a_removal_syncs_again():
    log, _ = play(HostsUpdatedInterrupt(True), HorovodInternalError("lost"), "done")
    assert log == ["sync", "train", *RESET, "train", "restore", *RESET, "sync", "train"]


@pytest.mark.parametrize(
    "error",
    [
        HorovodMismatchError("shapes"),
        HorovodNotInitializedError("init"),
        HorovodInitializationError("nobody came"),
        ZeroDivisionError("a bug"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_bug_is_not_a_lost_worker(error):
    with pytest.raises(type(error)):
        play(error)
    assert not elastic.notification_manager._listeners


def test_a_worker_lost_while_resetting_is_one_more_reset():
    log = []
    state = Played(log)
    troubles = [HorovodInternalError("lost again")]
    state.register_reset_callbacks([lambda: troubles and _raise(troubles.pop())])
    ends = [HorovodInternalError("lost"), None]

    def train(state):
        end = ends.pop(0)
        if end:
            raise end
        return "done"

    assert run_fn(train, lambda: log.append("reset"))(state) == "done"
    assert log == ["sync", "restore", "reset", "state.reset", "restore", "reset", "state.reset", "sync"]


def _raise(error):
    raise error


def test_the_manager_connects_once_and_only_if_there_is_a_driver():
    connections = []
    manager = elastic.WorkerNotificationManager(connect=lambda handler: connections.append(handler) or "connected")
    manager.init()
    manager.init()
    state = alone()
    manager.register_listener(state)
    assert len(connections) == 1
    connections[0](1.0, HostUpdateResult.added)
    with pytest.raises(HostsUpdatedInterrupt):
        state.check_host_updates()
    elastic.WorkerNotificationManager().init()


def test_public_import_paths():
    from horovod.runner.elastic import worker

    assert worker.HostUpdateResult is elastic.HostUpdateResult
    assert worker.WorkerNotificationManager is elastic.WorkerNotificationManager


def test_a_sync_that_fails_halfway_leaves_what_was_saved(monkeypatch):
    """Rank 0's commit may differ from this rank's. A mixture of both would be a state that no rank ever had."""
    from horovod.numpy import elastic as numpy_elastic

    def halfway(arrays, root):
        arrays["first"][...] = 9
        raise HorovodInternalError("rank 0 is lost")

    state = numpy_elastic.NumpyState(first=np.ones(3), second=np.ones(3), step=1)
    monkeypatch.setattr(state, "_bcast_object", lambda forms: (forms[0], {"step": 2}))
    monkeypatch.setattr(state, "_rank", lambda: 1)
    monkeypatch.setattr(numpy_elastic, "broadcast_parameters", halfway)
    with pytest.raises(HorovodInternalError):
        state.sync()
    state.restore()
    assert (state.first.tolist(), state.second.tolist(), state.step) == ([1.0] * 3, [1.0] * 3, 1)


def test_a_state_has_a_commit_once_the_function_runs():
    state = alone(epoch=0)
    assert state._commit_id is None

    def train(state):
        state.commit()
        state.commit()

    run_fn(train, lambda: None)(state)
    assert state._commit_id.commits == 2
