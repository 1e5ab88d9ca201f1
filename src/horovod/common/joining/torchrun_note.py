# SPDX-License-Identifier: Apache-2.0
"""A note for the other ranks of torchrun, in the store that torchrun serves. The store is trusted as torchrun is."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from horovod.common.exceptions import HorovodInitializationError
from horovod.common.topology import integer_of

_KEY = "horovod/rendezvous"
_served: list[Any] = []  # stores that this rank serves; kept because other ranks may still read them


class TorchrunNote:
    """Note of rank 0 in torchrun's store. Workers that torchrun restarts use a new key."""

    def __init__(self, rank: int, environ: Mapping[str, str], timeout_s: float) -> None:
        """Connect to the store. Raise HorovodInitializationError if it cannot be reached."""
        self._place = f"{environ.get('MASTER_ADDR')}:{environ.get('MASTER_PORT')}"
        attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._key = f"{_KEY}/{attempt}"
        serves = rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        try:
            self._store: Any = importlib.import_module("torch.distributed").TCPStore(
                environ["MASTER_ADDR"],
                integer_of("MASTER_PORT", environ),
                None,
                serves,
                timeout=timedelta(seconds=timeout_s),
                wait_for_workers=False,
                # torch does so too, because init_process_group() in this process may serve there as well.
                multi_tenant=True,
            )
        except (ImportError, KeyError, ValueError, RuntimeError) as error:
            raise HorovodInitializationError(
                f"hvd.init() failed on rank {rank}: torchrun's store at {self._place} cannot be reached: {error}"
            ) from error
        if serves:
            _served.append(self._store)

    def __str__(self) -> str:
        return f"{self._key!r} in torchrun's store at {self._place}"

    def write(self, data: bytes) -> None:
        self._store.set(self._key, data)

    def read(self) -> bytes | None:
        return bytes(self._store.get(self._key)) if self._store.check([self._key]) else None

    def remove(self) -> None:
        with suppress(RuntimeError):  # torchrun itself may be ending
            self._store.delete_key(self._key)
