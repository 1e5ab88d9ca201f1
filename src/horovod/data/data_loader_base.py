# SPDX-License-Identifier: Apache-2.0
"""Base class for data loaders, and a mixin that loads batches ahead of their use in a thread."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

_CLOSE_LIMIT_S = 5.0  # limit for closing, which waits for a loader that is busy with a batch


class BaseDataLoader:
    """Base class for data loaders.

    Override `_iterate`, which yields batches, and `__len__`. `_process_batch(batch)` may change each batch in the
    thread that uses it, for example to move it to a device.

    Example:
        >>> class Loader(BaseDataLoader):
        ...     def _iterate(self): yield from [1, 2, 3]
        >>> for batch in Loader(): print(batch)
    """

    def __len__(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)

    def _iterate(self) -> Iterator[Any]:
        raise NotImplementedError

    def _process_batch(self, batch: Any) -> Any:
        """Change a batch, for example move it to a device. Called in the thread that uses the batch."""
        return batch


class AsyncDataLoaderMixin:
    """Mixin that lets a thread load batches ahead of their use.

    It must be the first base class. An exception of the loader is raised where its batch would have come. The thread
    ends with the epoch, when its loop is left, or with close_async_loader().

    Args:
        async_loader_queue_size: Number of batches to load ahead. 0 means no thread.
        debug_data_loader: Print what the loader does to stderr.
        *args: Positional arguments of the other base classes.
        **kwargs: Keyword arguments of the other base classes.

    Example:
        >>> class Loader(AsyncDataLoaderMixin, BaseDataLoader):
        ...     def _iterate(self): yield from [1, 2, 3]
        >>> for batch in Loader(async_loader_queue_size=2): print(batch)
    """

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        self._readers: set[_ReadAhead] = set()

    def close_async_loader(self) -> None:
        """Stop loading.

        A loop that is still running ends after the batches that are loaded. This may be called twice.
        """
        for reader in list(self._readers):
            reader.close()

    def __iter__(self) -> Iterator[Any]:
        if self.async_loader_queue_size <= 0:
            yield from super().__iter__()  # type: ignore[misc]
            return
        reader = _ReadAhead(self._iterate, self.async_loader_queue_size)  # type: ignore[attr-defined]
        self._readers.add(reader)
        try:
            for batch in reader:
                self._debug("takes a batch")
                yield self._process_batch(batch)  # type: ignore[attr-defined]
        finally:
            self._readers.discard(reader)
            reader.close()
            self._debug("ended")

    def _debug(self, what: str) -> None:
        if self.debug_data_loader:
            print(f"{type(self).__name__} {what}; queue size {self.async_loader_queue_size}", file=sys.stderr)


class _ReadAhead:
    """Thread that runs an iterator, and a bounded queue of the batches."""

    def __init__(self, start: Any, limit: int) -> None:
        self._start = start
        self._limit = limit
        self._ready: deque[Any] = deque()
        self._changed = threading.Condition()
        self._closed = self._ended = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._load, name="hvd-data-loader", daemon=True)
        self._thread.start()

    def _load(self) -> None:
        try:
            for batch in self._start():
                if not self._put(batch):
                    break
        except BaseException as error:  # raised again in the thread that uses the batches
            self._failure = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _put(self, batch: Any) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._ready) < self._limit)
            if not self._closed:
                self._ready.append(batch)
                self._changed.notify_all()
            return not self._closed

    def __iter__(self) -> Iterator[Any]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._ended or self._closed)
                if not self._ready:
                    break
                batch = self._ready.popleft()
                self._changed.notify_all()
            yield batch
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_LIMIT_S)
