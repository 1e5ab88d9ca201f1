# SPDX-License-Identifier: Apache-2.0
"""Tagged send and recv: any order of tags, both directions at once, and concurrent collectives."""

import numpy as np
import pytest
from harness.arrays import DTYPES, check_equal, inputs
from harness.worlds import SEVERAL, on_all_ranks

import horovod.numpy as hvd


def neighbours():
    return (hvd.rank() + 1) % hvd.size(), (hvd.rank() - 1) % hvd.size()


@pytest.mark.parametrize("dtype", DTYPES)
@on_all_ranks(*SEVERAL)
def test_around_the_ring(dtype):
    after, before = neighbours()
    for shape in ((), (0,), (17,), (5, 3, 70)):
        arrays = inputs(shape, dtype, seed=shape)
        handle = hvd.send_async(arrays[hvd.rank()], after)
        target = np.zeros_like(arrays[0])
        assert hvd.recv(target, before) is target
        check_equal(target, arrays[before])
        hvd.synchronize(handle)


@on_all_ranks(*SEVERAL)
def test_tags_in_another_order_than_sent():
    after, before = neighbours()
    tags = [5, 0, 9, 2]
    sends = [hvd.send_async(np.full(100 + tag, hvd.rank() * 10 + tag), after, tag=tag) for tag in tags]
    for tag in reversed(tags):
        check_equal(hvd.recv(np.zeros(100 + tag, int), before, tag=tag), np.full(100 + tag, before * 10 + tag))
    for handle in sends:
        hvd.synchronize(handle)


@on_all_ranks(*SEVERAL)
def test_messages_of_one_tag_keep_their_order():
    after, before = neighbours()
    receives = [(hvd.recv_async(target, before, tag=1), target) for target in [np.zeros(40) for _ in range(8)]]
    sends = [hvd.send_async(np.full(40, float(index)), after, tag=1) for index in range(8)]
    for index, (handle, target) in enumerate(receives):
        assert hvd.synchronize(handle) is target
        check_equal(target, np.full(40, float(index)))
    for handle in sends:
        hvd.synchronize(handle)


@on_all_ranks(*SEVERAL)
def test_everyone_to_everyone_beside_collectives():
    others = [rank for rank in range(hvd.size()) if rank != hvd.rank()]
    receives = {rank: (hvd.recv_async(target := np.zeros(900), rank, tag=3), target) for rank in others}
    sends = [hvd.send_async(np.full(900, float(hvd.rank())), rank, tag=3) for rank in others]
    check_equal(hvd.allreduce(np.ones(900), op=hvd.Sum), np.full(900, float(hvd.size())))
    for rank, (handle, target) in receives.items():
        hvd.synchronize(handle)
        check_equal(target, np.full(900, float(rank)))
    for handle in sends:
        hvd.synchronize(handle)


@on_all_ranks(*SEVERAL)
def test_blocking_ping_pong():
    if hvd.rank() > 1:
        return
    for index in range(20):
        if hvd.rank() == 0:
            hvd.send(np.array([index]), 1)
            check_equal(hvd.recv(np.zeros(1, int), 1), np.array([index + 1]))
        else:
            hvd.send(hvd.recv(np.zeros(1, int), 0) + 1, 0)


@on_all_ranks(*SEVERAL)
def test_ranks_that_do_not_exist():
    for call in (lambda: hvd.send(np.ones(1), hvd.size()), lambda: hvd.recv(np.ones(1), -1)):
        with pytest.raises(ValueError, match="there is no rank"):
            call()
