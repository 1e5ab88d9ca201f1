# SPDX-License-Identifier: Apache-2.0
"""From init to shutdown and init again: topology, calls before init and after shutdown, forks, ranks that leave."""

import os
import re
import warnings

import numpy as np
import pytest
from harness.arrays import check_equal
from harness.worlds import SEVERAL, SMALL_CHUNKS, TCP, World, in_worlds, on_all_ranks

import horovod.numpy as hvd
from horovod.common.exceptions import HorovodNotInitializedError


@in_worlds()
def test_topology(world):
    places = world.run(place)
    hosts = [int(host.partition(":")[2]) for host in world.world.hosts.split(",")]
    expected = []
    for host, slots in enumerate(hosts):
        for local_rank in range(slots):
            column = [other for other, count in enumerate(hosts) if count > local_rank]
            expected.append((len(expected), world.size, local_rank, slots, column.index(host), len(column)))
    assert [found[:6] for found in places] == expected
    assert {found[6] for found in places} == {len(set(hosts)) == 1}


def place():
    return (
        hvd.rank(),
        hvd.size(),
        hvd.local_rank(),
        hvd.local_size(),
        hvd.cross_rank(),
        hvd.cross_size(),
        hvd.is_homogeneous(),
    )


@on_all_ranks()
def test_shutdown_and_init_again():
    for _ in range(2):
        pending = hvd.allreduce_async(np.ones(3), name="never waited for")
        assert pending > 0
        hvd.shutdown()
        assert not hvd.is_initialized()
        for question in (hvd.rank, hvd.size, hvd.local_rank, hvd.cross_size, hvd.is_homogeneous):
            with pytest.raises(ValueError, match=r"hvd\.init\(\)"):
                question()
        with pytest.raises(hvd.HorovodInternalError, match=r"hvd\.init\(\)"):
            hvd.allreduce(np.ones(3))
        with pytest.raises(ValueError, match="cleared"):
            hvd.poll(pending)
        hvd.shutdown()
        hvd.init()
        hvd.init()
        assert hvd.allreduce_async(np.ones(3), name="first") == 1
        check_equal(hvd.synchronize(1), np.ones(3))
        check_equal(hvd.allreduce(np.ones(3), op=hvd.Sum), np.full(3, float(hvd.size())))


@on_all_ranks()
def test_a_forked_child_is_told_so_and_leaves_the_engine_alone():
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns about a fork in a process with threads
        child = os.fork()
    if child == 0:
        text = "nothing was refused"
        try:
            hvd.allreduce(np.ones(3))
        except HorovodNotInitializedError as error:
            text = str(error)
        finally:
            os.write(writer, text.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert "forked" in pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    check_equal(hvd.allreduce(np.ones(500), op=hvd.Sum), np.full(500, float(hvd.size())))


LEAVING = [World("leaving-shm4", "a:4", SMALL_CHUNKS), World("leaving-tcp4", "a:4", SMALL_CHUNKS | TCP)]


@on_all_ranks(*SEVERAL)
def test_a_rank_may_leave_as_soon_as_its_own_work_is_done():
    """The last results of a rank must reach the others, even if they read them after it has left."""
    size = hvd.size()
    for index in range(10):
        result = hvd.allreduce(np.full(2000, float(index)), op=hvd.Sum)
        hvd.shutdown()
        check_equal(result, np.full(2000, float(index * size)))
        hvd.init()


@on_all_ranks(*LEAVING)
def test_work_that_waits_for_a_rank_that_left_fails():
    """The error names rank 1, or another rank that shut down because rank 1 did."""
    own_rank = hvd.rank()
    if own_rank == 1:
        hvd.shutdown()
    else:
        with pytest.raises(hvd.HorovodInternalError, match=r"Rank \d finished while .*|rank \d is lost") as raised:
            hvd.allreduce(np.ones(30), name="nobody comes")
        if "finished" in str(raised.value):
            assert re.search(
                r"^Horovod has been shut down\. Rank \d finished while rank.* still calls? 'allreduce\.nobody comes'\. "
                r"Let all ranks make this call, outside of conditions such as `if hvd\.rank\(\) == 0`; "
                r"if ranks only have different numbers of batches, use drop_last=True or hvd\.join\(\)\.",
                str(raised.value),
            )
        hvd.shutdown()
    hvd.init()
    check_equal(hvd.allreduce(np.ones(3), op=hvd.Sum), np.full(3, 4.0))


@in_worlds(*LEAVING)
def test_a_rank_that_dies_fails_the_others(world):
    with pytest.raises(pytest.fail.Exception) as failed:
        world.run(die_on_rank_2, limit_s=20)
    text = str(failed.value)
    assert "rank 2 died with 7" in text
    assert text.count("passed") == 3, text


def die_on_rank_2():
    if hvd.rank() == 2:
        os._exit(7)
    for _ in range(2):  # every later operation must fail too
        with pytest.raises(hvd.HorovodInternalError, match="rank 2"):
            hvd.allreduce(np.ones(30))
