# SPDX-License-Identifier: Apache-2.0
"""Elastic training through model.fit: callbacks that update and commit an elastic state."""

from __future__ import annotations

from typing import Any

from horovod._keras.undistributed import Checked


class CommitStateCallbackImpl(Checked):
    """Callback that commits the state after every `batches_per_commit` batches and after every epoch; pass it last."""

    def __init__(self, backend: Any, state: Any, batches_per_commit: int, *args: Any) -> None:
        super().__init__(*args)
        self.keras = backend
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        # Restart the count, because new workers and those that stayed must commit after equal numbers of batches.
        self.batches_remaining = self.batches_per_commit

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.commit()

    def commit(self) -> None:
        self.batches_remaining = self.batches_per_commit
        self.state.commit()


class UpdateBatchStateCallbackImpl(Checked):
    """Callback that sets `state.batch` to the batch of the epoch.

    After a restart it shortens the first epoch by the batches that are already done.
    """

    params: dict[str, Any]

    def __init__(self, backend: Any, state: Any, *args: Any) -> None:
        super().__init__(*args)
        self.keras = backend
        self.state = state
        self.steps_per_epoch: int | None = None
        self._done_before = 0

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self.steps_per_epoch is None:
            self.steps_per_epoch = (self.params or {}).get("steps")
        self._done_before = self.state.batch
        if self.steps_per_epoch:
            self.params["steps"] = self.steps_per_epoch - self._done_before

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state.batch = self._done_before + batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.batch = 0


class UpdateEpochStateCallbackImpl(Checked):
    """Callback that sets `state.epoch` to the number of finished epochs, also counting those before a restart."""

    def __init__(self, backend: Any, state: Any, *args: Any) -> None:
        super().__init__(*args)
        self.keras = backend
        self.state = state
        self.initial_epoch: int = state.epoch
        self._first: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        self.initial_epoch = self.state.epoch
        self._first = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._first is None:
            self._first = epoch  # fit counts from its initial_epoch, which may equal state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.epoch = self.initial_epoch + epoch - (self._first or 0) + 1
