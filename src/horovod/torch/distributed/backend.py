# SPDX-License-Identifier: Apache-2.0
"""Creation of process groups for torch, whose members find each other through torch's store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from horovod.torch.distributed.channel import open_channel, seconds
from horovod.torch.distributed.process_group import HorovodProcessGroup


class _TorchStore:
    """Adapter from torch's store to horovod.common.joining.through_store.Store."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        return bytes(self._store.get(key))

    def add(self, key: str, amount: int) -> int:
        return int(self._store.add(key, amount))

    def check(self, key: str) -> bool:
        return bool(self._store.check([key]))

    def wait(self, keys: Sequence[str], timeout_s: float) -> bool:
        try:
            self._store.wait(list(keys), timedelta(seconds=timeout_s))
        except RuntimeError:
            return all(self.check(key) for key in keys)
        return True

    def delete(self, key: str) -> None:
        self._store.delete_key(key)


def create(options: Any) -> HorovodProcessGroup:
    """Create a process group; torch calls this on every member of a new group, with the group's store and ranks."""
    timeout_s = seconds(options.timeout)
    members = list(options.global_ranks_in_group)
    label = f"process group {options.group_id}" if members else "the default process group"
    store = _TorchStore(options.store)
    host = _host_of(options.store)
    channel = open_channel(store, host, options.group_rank, options.group_size, timeout_s, label, members)
    return HorovodProcessGroup(channel, timeout_s, str(options.group_id))


def _host_of(store: Any) -> str | None:
    """Return the host that serves a store, or None if it is unknown."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host = getattr(store, "host", None)
    return host if isinstance(host, str) and host else None
