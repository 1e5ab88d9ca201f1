# SPDX-License-Identifier: Apache-2.0
"""hvd.counters(): the bytes that collectives of known sizes move through sockets and shared memory."""

import numpy as np
import pytest
from harness.worlds import ALL, on_all_ranks

import horovod.numpy as hvd

NAMES = [
    "data_bytes_sent",
    "data_bytes_received",
    "control_bytes_sent",
    "control_bytes_received",
    "shared_memory_bytes_read",
    "shared_memory_bytes_written",
]
BYTES = 1 << 20


def counted(*names):
    counters = hvd.counters()
    return np.array([counters[name] for name in names])


def data():
    return counted("data_bytes_sent", "data_bytes_received").tolist()


def memory():
    return counted("shared_memory_bytes_read", "shared_memory_bytes_written").tolist()


@on_all_ranks(*ALL)
def test_names_and_that_they_only_grow():
    before = hvd.counters()
    assert list(before) == NAMES
    assert all(type(value) is int for value in before.values())
    hvd.allreduce(np.ones(1000), name="x")
    after = hvd.counters()
    assert all(after[name] >= before[name] for name in NAMES)
    assert (sum(after.values()) > sum(before.values())) == (hvd.size() > 1)


@on_all_ranks("tcp2", "tcp4")
def test_an_allreduce_over_sockets_moves_twice_its_bytes_but_for_each_ranks_share():
    before, in_memory = data(), memory()
    sent, received = counted("control_bytes_sent", "control_bytes_received")
    hvd.allreduce(np.ones(BYTES // 4, np.float32), name="large")
    moved = 2 * (hvd.size() - 1) * BYTES // hvd.size()
    assert data() == [before[0] + moved, before[1] + moved]
    assert counted("control_bytes_sent") > sent
    assert memory() == in_memory == [0, 0]
    before = data()
    hvd.barrier()
    assert data() == before
    # The other ranks' messages about the allreduce may have arrived before this test began to count, those about the
    # barrier cannot.
    assert counted("control_bytes_received") > received


@on_all_ranks("tcp2", "tcp4")
def test_small_tensors_on_sockets():
    """The second and third tensor travel inside control messages; the bytes of the tensor count as data."""
    before = data()
    for _ in range(3):
        hvd.allreduce(np.ones(3, np.float32), name="small")
    moved = 3 * 12 * (hvd.size() - 1)
    assert data() == [before[0] + moved, before[1] + moved]


@on_all_ranks("shm2", "shm4")
def test_what_an_allreduce_reads_in_shared_memory():
    share = (hvd.size() - 1) * BYTES // hvd.size()
    read, written = memory()
    hvd.allreduce(np.ones(BYTES // 4, np.float32), name="staged")
    assert memory() == [read + 2 * share, written]
    array = hvd.shared_zeros(BYTES // 4, np.float32)
    read, written = memory()
    # Each rank reads its share of all tensors and writes the result into all of them.
    hvd.allreduce_(array, name="where it lies")
    assert memory() == [read + share, written + share]
    read, written = memory()
    for _ in range(3):
        hvd.allreduce(np.ones(3, np.float32), name="small")
    assert memory() == [read + 3 * 12 * (hvd.size() - 1), written]
    assert [hvd.counters()[name] for name in NAMES[:4]] == [0] * 4


@on_all_ranks("shm2", "shm4")
def test_what_is_written_straight_into_other_ranks_outputs():
    mine = np.ones(BYTES // hvd.size(), np.uint8)
    before = sum(memory())
    hvd.allgather(mine, name="gathered")
    moved = sum(memory()) - before - (hvd.size() - 1) * mine.size
    assert 0 <= moved <= 1000  # descriptions of where the outputs are


@on_all_ranks("hosts4")
def test_two_hosts_count_each_byte_where_it_goes():
    sent, read = data()[0], memory()[0]
    hvd.allreduce(np.ones(BYTES // 4, np.float32), name="by host")
    # Each rank of a host handles half of the tensor. It sends the other host one quarter to be reduced there, and later
    # the quarter that it has reduced itself.
    assert data()[0] - sent == BYTES // 2
    assert memory()[0] - read == 2 * BYTES // 2


@on_all_ranks("tcp2")
def test_process_sets_count_together():
    alone = hvd.add_process_set([0])
    before = data()
    if hvd.rank() == 0:
        hvd.allreduce(np.ones(1000), name="alone", process_set=alone)
    assert data() == before
    both = hvd.global_process_set
    hvd.allreduce(np.ones(BYTES // 4, np.float32), name="both", process_set=both)
    assert data() == [before[0] + BYTES, before[1] + BYTES]
    hvd.remove_process_set(alone)


@on_all_ranks("tcp2", "shm2")
def test_they_go_on_in_the_next_world():
    hvd.allreduce(np.ones(BYTES // 4, np.float32), name="before")
    before, moved = hvd.counters(), data() + memory()
    hvd.shutdown()
    with pytest.raises(ValueError, match=r"hvd\.init\(\)"):
        hvd.counters()
    hvd.init()
    assert data() + memory() == moved
    after = hvd.counters()
    # Ending the first world and starting this one also moved bytes.
    assert all(after[name] >= before[name] for name in NAMES)
    hvd.allreduce(np.ones(BYTES // 4, np.float32), name="after")
    both = data() + memory()
    assert [found - earlier for found, earlier in zip(both, moved, strict=True)] == (
        [BYTES, BYTES, 0, 0] if moved[0] else [0, 0, BYTES, 0]
    )
