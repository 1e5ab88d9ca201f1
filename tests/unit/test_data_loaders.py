# SPDX-License-Identifier: Apache-2.0
"""Data loaders that prefetch in a thread: order of batches, position of errors, and the end of the thread."""

import threading

import pytest

from horovod.data import AsyncDataLoaderMixin, BaseDataLoader


class Numbers(BaseDataLoader):
    def __init__(self, count, fail_at=None):
        self.count = count
        self.fail_at = fail_at
        self.loaded = 0
        self.loaders = set()

    def __len__(self):
        return self.count

    def _iterate(self):
        for number in range(self.count):
            if number == self.fail_at:
                raise ZeroDivisionError("no batch")
            self.loaders.add(threading.current_thread())
            self.loaded += 1
            yield number

    def _process_batch(self, batch):
        assert threading.current_thread() is threading.main_thread()
        return batch * 10


class AsyncNumbers(AsyncDataLoaderMixin, Numbers):
    pass


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "hvd-data-loader"]


def test_base():
    assert list(Numbers(3)) == [0, 10, 20]
    assert len(Numbers(3)) == 3
    with pytest.raises(NotImplementedError):
        list(BaseDataLoader())


@pytest.mark.parametrize("queue_size", [0, 1, 3, 64])
def test_the_same_batches_in_every_epoch(queue_size, capsys):
    loader = AsyncNumbers(queue_size, True, 10)
    for _ in range(2):
        assert list(loader) == [10 * number for number in range(10)]
    assert (threading.main_thread() in loader.loaders) == (queue_size == 0)
    assert ("takes a batch" in capsys.readouterr().err) == (queue_size > 0)
    assert not threads()


def test_defaults_and_keywords():
    loader = AsyncNumbers(count=2)
    assert loader.async_loader_queue_size == 64
    assert (len(loader), list(loader)) == (2, [0, 10])


def test_loads_ahead_but_not_too_far():
    loader = AsyncNumbers(2, count=100)
    batches = iter(loader)
    assert next(batches) == 0
    batches.close()
    assert 1 <= loader.loaded <= 4  # one batch consumed, two in the queue, one being put
    assert not threads()


def test_an_error_comes_after_the_batches_before_it():
    batches = iter(AsyncNumbers(count=5, fail_at=2))
    assert (next(batches), next(batches)) == (0, 10)
    with pytest.raises(ZeroDivisionError, match="no batch"):
        next(batches)
    assert not threads()


def test_closing_ends_a_loop_and_its_thread():
    loader = AsyncNumbers(3, count=10**9)
    got = 0
    for _ in loader:
        got += 1
        if got == 5:
            loader.close_async_loader()
            loader.close_async_loader()
    assert 5 <= got <= 9
    assert not threads()
