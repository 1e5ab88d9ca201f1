# SPDX-License-Identifier: Apache-2.0
"""Arrays that a program donates, deletes or changes while an operation on them is in flight.

Rank 0 starts an operation and loses its arrays. Rank 1 calls only after that, so the engine still has to read the
arrays of rank 0.
"""

import functools
import threading

import numpy as np
import pytest
from harness.arrays import DTYPES, check_equal, inputs, mine, reduced
from harness.waiting import sigint_after_a_moment
from harness.worlds import DYNAMIC, SMALL_CHUNKS, World, in_worlds, on_all_ranks
from testkit.preloaded import ANEW

from horovod.common.context import default_context

LARGE, HUGE = 100_000, 4_000_000  # number of elements
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


@functools.cache
def program(count):
    """Return a program of `count` arrays whose results may use the memory of its arguments."""
    from harness.jax_door import jax

    def change(*arrays):
        return [~array if array.dtype == bool else array + array for array in arrays]

    return jax.jit(change, donate_argnums=tuple(range(count)))


def donate(arrays):
    """Pass arrays to a program that may overwrite them. Return its results."""
    from harness.jax_door import jax

    return jax.block_until_ready(program(len(arrays))(*arrays))


def delete(arrays):
    """Delete arrays, and fill memory of their sizes with other numbers."""
    from harness.jax_door import jax

    others = [jax.numpy.ones_like(array) for array in arrays]
    for array in arrays:
        array.delete()
    for _ in range(10):
        others = donate(others)


LOSSES = {"donate": donate, "delete": delete}
both_losses = pytest.mark.parametrize("lose", LOSSES)


def meet():
    """Wait for the other rank by name, because ranks make unnamed calls in different orders here."""
    from harness.jax_door import hvd

    hvd.allreduce(np.ones(1), name="rank 0 has lost its arrays")


def in_flight(start, arrays, lose):
    """Return the result of a named operation on arrays that rank 0 loses before rank 1 calls."""
    from harness.jax_door import hvd

    if hvd.rank() == 0:
        handle = start(arrays)
        lose(arrays)
        meet()
    else:
        meet()
        handle = start(arrays)
    return hvd.synchronize(handle)


def check_each(results, expected):
    for result, one in zip(results, expected, strict=True):
        check_equal(np.asarray(result), one)


@pytest.mark.checked_numbers(
    "asynchronous JAX operations whose arrays are donated or deleted meanwhile, on every dtype", against="NumPy"
)
@both_losses
@on_all_ranks("shm2", limit_s=60)
def test_arrays_may_be_donated_or_deleted_meanwhile(lose):
    from harness.jax_door import hvd, jnp

    me = hvd.rank()
    forms = [(dtype, 6000) for dtype in DTYPES] + [("float32", count) for count in (2, 1000, LARGE)]
    all_types = [inputs((count,), dtype, "in flight") for dtype, count in forms]
    numbers = [arrays for arrays in all_types if arrays[0].dtype != bool]
    calls = {
        "allreduce": (all_types, lambda tree: hvd.allreduce_async(tree, op=hvd.Sum, name="it")),
        "broadcast": (all_types, lambda tree: hvd.broadcast_async(tree, 0, name="it")),
        "allgather": (all_types, lambda tree: hvd.grouped_allgather_async(tree, name="it")),
        "reducescatter": (numbers, lambda tree: hvd.reducescatter_async(tree, op=hvd.Sum, name="it")),
    }
    references = {
        "allreduce": lambda arrays: reduced(arrays, "Sum"),
        "broadcast": lambda arrays: arrays[0],
        "allgather": np.concatenate,
        "reducescatter": lambda arrays: np.split(reduced(arrays, "Sum"), 2)[me],
    }
    for name, (inputs_of_ranks, start) in calls.items():
        results = in_flight(start, [jnp.asarray(mine(arrays)) for arrays in inputs_of_ranks], LOSSES[lose])
        for result, arrays in zip(results, inputs_of_ranks, strict=True):
            check_equal(np.asarray(result), references[name](arrays))
    huge = inputs((HUGE,), "float32", "in flight")
    [result] = in_flight(calls["allreduce"][1], [jnp.asarray(mine(huge))], LOSSES[lose])
    check_equal(np.asarray(result), references["allreduce"](huge))


@pytest.mark.checked_numbers(
    "an asynchronous JAX alltoall whose array is donated or deleted meanwhile", against="NumPy"
)
@both_losses
@pytest.mark.parametrize("splits", [None, (1000, LARGE - 1000)])
@on_all_ranks("shm2")
def test_the_array_of_an_alltoall_may_be_lost_meanwhile(lose, splits):
    from harness.jax_door import hvd, jnp

    for dtype in ("float32", *FLOAT8):
        arrays = inputs((LARGE,), dtype, "alltoall")
        start = lambda own: hvd.alltoall_async(own[0], None if splits is None else list(splits), name="it")  # noqa: E731
        output, _ = in_flight(start, [jnp.asarray(mine(arrays))], LOSSES[lose])
        middle = LARGE // 2 if splits is None else splits[0]
        check_equal(np.asarray(output), np.concatenate([np.split(array, [middle])[hvd.rank()] for array in arrays]))


@pytest.mark.checked_numbers(
    "an asynchronous JAX allreduce of a NumPy array that is changed meanwhile", against="NumPy"
)
@on_all_ranks("shm2")
def test_a_numpy_array_may_be_changed_meanwhile():
    """Some versions of JAX use the memory of such an array without a copy if it is aligned to 64 bytes."""
    from harness.jax_door import hvd

    from horovod.common.arrays import address_of

    arrays = inputs((LARGE,), "float32", "changed")
    memory = np.empty(4 * LARGE + 64, np.uint8)
    own = memory[-address_of(memory) % 64 :][: 4 * LARGE].view(np.float32)
    own[:] = mine(arrays)
    result = in_flight(lambda one: hvd.allreduce_async(one, op=hvd.Sum, name="it"), own, lambda one: one.fill(-1))
    check_equal(np.asarray(result), reduced(arrays, "Sum"))


# Dtypes that Python's buffer protocol knows, and two kinds that it does not know.
KINDS_OF_DTYPES = ("float32", "bool", "bfloat16", *FLOAT8)


def arrays_to_release(dtypes=KINDS_OF_DTYPES):
    """Return arrays, and a function that donates them and returns True if their memory is overwritten."""
    from harness.jax_door import jax, jnp

    if jax.__version_info__ < (0, 5):  # these versions keep their own reference to a float8 array
        dtypes = [dtype for dtype in dtypes if dtype not in FLOAT8]
    arrays = [jax.block_until_ready(jnp.ones(LARGE, dtype)) for dtype in dtypes]
    addresses = [array.unsafe_buffer_pointer() for array in arrays]
    return arrays, lambda: [result.unsafe_buffer_pointer() for result in donate(arrays)] == addresses


def wait_until_complete(handle):
    """Wait without a call of the API, because such a call would release the arrays."""
    pending = default_context.handles._pending[handle]
    while not pending.is_complete():
        pass


def collected(arrays):
    from harness.jax_door import hvd

    hvd.synchronize(hvd.broadcast_async(arrays, 0))


def polled(arrays):
    from harness.jax_door import hvd

    handle = hvd.broadcast_async(arrays, 0)
    while not hvd.poll(handle):
        pass


def forgotten(arrays):
    """No call uses the handle. The next operation that starts finds the first one complete."""
    from harness.jax_door import hvd

    wait_until_complete(hvd.broadcast_async(arrays, 0))
    hvd.synchronize(hvd.allreduce_async(np.ones(3)))


def blocking(arrays):
    from harness.jax_door import hvd

    hvd.broadcast(arrays, 0)


def failed(arrays):
    from harness.jax_door import hvd

    handle = hvd.broadcast_async(arrays, hvd.rank(), name="two roots")
    with pytest.raises(hvd.HorovodMismatchError) as kept:
        hvd.synchronize(handle)
    ERRORS.append(kept.value)


def refused(arrays):
    from harness.jax_door import hvd

    with pytest.raises(ValueError, match="root rank 7"):
        hvd.broadcast_async(arrays, 7)


def shut_down(arrays):
    """Shut down while rank 0 alone has started an operation."""
    from harness.jax_door import hvd

    if hvd.rank() == 0:
        hvd.broadcast_async(arrays, 0, name="it")
    hvd.shutdown()
    hvd.init()


ERRORS = []
ENDS = {end.__name__: end for end in (collected, polled, forgotten, blocking, failed, refused, shut_down)}


@pytest.mark.parametrize("end", ENDS)
@on_all_ranks("shm2")
def test_operations_that_have_ended_let_go_of_their_arrays(end):
    """XLA copies a donated array only while the engine may read it; later the result uses that memory."""
    arrays, are_overwritten = arrays_to_release()
    ENDS[end](arrays)
    assert are_overwritten()


@pytest.mark.checked_numbers("a blocking JAX allreduce whose array another thread donates", against="NumPy")
@both_losses
@on_all_ranks("shm2")
def test_another_thread_may_donate_the_array_of_a_blocking_call(lose):
    from harness.jax_door import hvd, jnp

    from horovod.jax import eager

    arrays = inputs((LARGE,), "float32", "thread")
    own = jnp.asarray(mine(arrays))
    results = []
    thread = threading.Thread(target=lambda: results.append(hvd.allreduce(own, op=hvd.Sum, name="in a thread")))
    started = threading.Event()
    start = eager.collectives.start

    def start_and_say_so(*arguments):
        pending = start(*arguments)
        started.set()
        return pending

    if hvd.rank() == 1:
        meet()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eager.collectives, "start", start_and_say_so)
        thread.start()
        assert started.wait(20)
    if hvd.rank() == 0:
        LOSSES[lose]([own])
        meet()
    thread.join(20)
    check_equal(np.asarray(results[0]), reduced(arrays, "Sum"))


@pytest.mark.checked_numbers("a JAX allreduce that Ctrl-C interrupts and whose array is then donated", against="NumPy")
@on_all_ranks("shm2")
def test_ctrl_c_ends_the_wait_but_not_the_operation():
    from harness.jax_door import hvd, jnp

    arrays = inputs((LARGE,), "float32", "interrupted")
    own = jnp.asarray(mine(arrays))
    if hvd.rank() == 0:
        with sigint_after_a_moment(), pytest.raises(KeyboardInterrupt):
            hvd.allreduce(own, op=hvd.Sum, name="interrupted")
        donate([own])
        meet()
    else:
        meet()
        check_equal(np.asarray(hvd.allreduce(own, op=hvd.Sum, name="interrupted")), reduced(arrays, "Sum"))


TWO_DEVICES = World(
    "jax two devices",
    "a:2",
    DYNAMIC
    | SMALL_CHUNKS
    | ANEW
    | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2 --xla_cpu_multi_thread_eigen=false"},
)


@pytest.mark.checked_numbers("JAX arrays that are shards of one array, which is deleted meanwhile", against="NumPy")
@in_worlds(TWO_DEVICES)
def test_shards_of_an_array(world):
    world.run(_shards)


def _shards():
    from harness.jax_door import hvd, jax

    arrays = inputs((2, LARGE), "float32", "shards")
    mesh = jax.sharding.Mesh(jax.devices(), ("rows",))
    whole = jax.device_put(mine(arrays), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows")))
    with pytest.raises(ValueError, match="spread over 2"):
        hvd.allreduce_async(whole)

    def start(one):
        return hvd.allreduce_async([shard.data for shard in one[0].addressable_shards], op=hvd.Sum, name="it")

    results = in_flight(start, [whole], delete)
    check_equal(np.concatenate(results), reduced(arrays, "Sum"))
