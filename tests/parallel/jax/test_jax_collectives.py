# SPDX-License-Identifier: Apache-2.0
"""Every collective on every dtype against NumPy, eagerly and inside jit, where one program contains all calls."""

import pytest
from harness.arrays import AVERAGES_OF_TWO, DTYPES, FLOATS, OPS, averages_of_two, inputs, mine, reduced
from harness.worlds import ROUNDING, on_all_ranks

SHAPES = ((), (0, 3), (7,), (5, 3))
WORLDS = ("shm2", "shm4")
both_modes = pytest.mark.parametrize("mode", ["eager", "jit"])


@pytest.mark.checked_numbers("allreduce, in jit and outside", against="NumPy")
@both_modes
@on_all_ranks(*WORLDS, limit_s=60)
def test_allreduce(mode):
    from harness.jax_door import check_all, hvd, run

    cases = {
        f"{op} {dtype} {shape}": (op, inputs(shape, dtype, op))
        for dtype in DTYPES
        for op in OPS
        for shape in SHAPES
        if (dtype, op) != ("bool", "Average") and (shape == (7,) or dtype == "float32")
    }

    def reduce_all(arrays):
        return {case: hvd.allreduce(array, op=OPS[cases[case][0]]) for case, array in arrays.items()}

    results = run(mode, reduce_all, {case: mine(values) for case, (_, values) in cases.items()})
    return check_all(results, {case: reduced(values, op) for case, (op, values) in cases.items()})


@pytest.mark.checked_numbers(
    "averages of integer arrays under 64 bits whose sums overflow", against="the exact quotient"
)
@both_modes
@on_all_ranks("shm2", limit_s=60)
def test_the_average_of_integers_is_exact(mode):
    from harness.jax_door import check_all, hvd, np, run

    cases = {dtype: averages_of_two(dtype, hvd.rank()) for dtype in AVERAGES_OF_TWO}

    def average_all(tree):
        return {
            "each": {dtype: hvd.allreduce(array) for dtype, array in tree.items()},
            "group": hvd.allreduce(tree, name="averages"),
            "share": {dtype: hvd.reducescatter(array) for dtype, array in tree.items()},
        }

    results = run(mode, average_all, {dtype: own for dtype, (own, _) in cases.items()})
    expected = {dtype: average for dtype, (_, average) in cases.items()}
    check_all(results["share"], {dtype: np.array_split(it, 2)[hvd.rank()] for dtype, it in expected.items()})
    return check_all(results["each"], expected), check_all(results["group"], expected)


@both_modes
@on_all_ranks(*WORLDS)
def test_a_tree_of_all_dtypes_is_one_group(mode):
    from harness.jax_door import check_all, hvd, run

    dtypes = [dtype for dtype in DTYPES if dtype != "bool"]
    arrays = {dtype: inputs((2, 9), dtype, "tree") for dtype in dtypes}
    results = run(
        mode,
        lambda tree: hvd.allreduce(tree, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0, name="tree"),
        {dtype: mine(values) for dtype, values in arrays.items()},
    )
    return check_all(results, {dtype: reduced(values, "Sum", 0.5, 3.0) for dtype, values in arrays.items()})


@pytest.mark.checked_numbers("allgather, broadcast and alltoall, in jit and outside", against="NumPy")
@both_modes
@on_all_ranks(*WORLDS, limit_s=60)
def test_movements(mode):
    from harness.jax_door import check_all, hvd, np, run

    me, size = hvd.rank(), hvd.size()
    arrays = {dtype: inputs((2 * size, 3), dtype, "move") for dtype in DTYPES}

    def move_all(tree):
        return {
            "allgather": hvd.allgather(tree),
            "broadcast": hvd.broadcast(tree, root_rank=size - 1),
            "alltoall": {dtype: hvd.alltoall(array) for dtype, array in tree.items()},
        }

    results = run(mode, move_all, {dtype: mine(values) for dtype, values in arrays.items()})
    gathered = check_all(results["allgather"], {dtype: np.concatenate(values) for dtype, values in arrays.items()})
    sent = check_all(results["broadcast"], {dtype: values[-1] for dtype, values in arrays.items()})
    rows = slice(2 * me, 2 * me + 2)
    check_all(
        results["alltoall"],
        {dtype: np.concatenate([value[rows] for value in values]) for dtype, values in arrays.items()},
    )
    return gathered, sent


@pytest.mark.checked_numbers("reducescatter, in jit and outside", against="NumPy")
@both_modes
@on_all_ranks(*WORLDS, limit_s=60)
def test_reducescatter(mode):
    from harness.jax_door import check_all, hvd, run

    from horovod.common.rules import rows_of

    me, size = hvd.rank(), hvd.size()
    first = sum(rows_of(index, 7, size) for index in range(me))
    rows = slice(first, first + rows_of(me, 7, size))
    arrays = {dtype: inputs((7, 3), dtype, "scatter") for dtype in DTYPES if dtype != "bool"}
    mine_all = {dtype: mine(values) for dtype, values in arrays.items()}
    for op in ("Average", "Sum"):
        results = run(mode, lambda tree, op=op: hvd.reducescatter(tree, op=OPS[op]), mine_all)
        check_all(results, {dtype: reduced(values, op)[rows] for dtype, values in arrays.items()})


@both_modes
@on_all_ranks("shm2", "shm4")
def test_adasum_and_compression(mode):
    from harness.jax_door import hvd, jnp, np, run

    import horovod.numpy

    arrays = inputs((33,), "float32", "compress")
    plain = run(mode, lambda x: hvd.allreduce(x, op=hvd.Adasum), mine(arrays))
    np.testing.assert_array_equal(plain, horovod.numpy.allreduce(mine(arrays), op=hvd.Adasum))
    for compression, half in ((hvd.Compression.fp16, jnp.float16), (hvd.Compression.bf16, jnp.bfloat16)):
        # Outside jit the engine compresses, and it does not round on one host.
        dtype = half if mode == "jit" else jnp.float32
        tree = {"wide": mine(arrays), "whole": np.arange(3) + hvd.rank()}
        results = run(mode, lambda t, c=compression: hvd.allreduce(t, op=hvd.Sum, compression=c), tree)
        expected = reduced([np.asarray(jnp.asarray(array).astype(dtype)) for array in arrays], "Sum")
        assert results["wide"].dtype == jnp.float32
        np.testing.assert_array_equal(results["wide"], expected.astype(np.float32))
        np.testing.assert_array_equal(results["whole"], sum(np.arange(3) + rank for rank in range(hvd.size())))


@both_modes
@on_all_ranks(ROUNDING[0], limit_s=60)
def test_compression_between_hosts(mode):
    from harness.jax_door import hvd, jnp, np, run

    arrays = inputs((33,), "float32", "hosts")
    for compression, dtype in ((hvd.Compression.fp16, jnp.float16), (hvd.Compression.bf16, jnp.bfloat16)):
        result = run(mode, lambda x, c=compression: hvd.allreduce(x, op=hvd.Sum, compression=c), mine(arrays))
        expected = reduced([np.asarray(jnp.asarray(array).astype(dtype)) for array in arrays], "Sum")
        np.testing.assert_array_equal(result, expected.astype(np.float32))


@on_all_ranks("shm2", "shm4")
def test_rows_may_differ_outside_jit():
    from harness.jax_door import hvd, jax, jnp, np

    me, size = hvd.rank(), hvd.size()
    parts = [np.full((rank + 1, 2), rank, np.float32) for rank in range(size)]
    gathered = hvd.allgather([jnp.asarray(parts[me]), jnp.asarray(parts[me][:1])])
    np.testing.assert_array_equal(gathered[0], np.concatenate(parts))
    np.testing.assert_array_equal(gathered[1], np.concatenate([part[:1] for part in parts]))
    splits = [index + me for index in range(size)]
    output, received = hvd.alltoall(jnp.full((sum(splits), 1), me), splits)
    np.testing.assert_array_equal(received, [me + rank for rank in range(size)])
    np.testing.assert_array_equal(output[:, 0], np.repeat(np.arange(size), np.asarray(received)))
    with pytest.raises(ValueError, match="inside jit the shape of its result would depend"):
        jax.jit(lambda x: hvd.alltoall(x, splits))(jnp.ones((4, 1)))


@on_all_ranks("shm2")
def test_asynchronous_operations():
    from harness.jax_door import hvd, jax, jnp, np

    me = hvd.rank()
    handles = [hvd.allreduce_async({"a": jnp.full(3, float(me + i))}, op=hvd.Sum) for i in range(5)]
    handles.append(hvd.broadcast_async([jnp.full(2, me), jnp.ones(1) * me], root_rank=1))
    results = [hvd.synchronize(handle) for handle in handles]
    for i, result in enumerate(results[:5]):
        np.testing.assert_array_equal(result["a"], [1.0 + 2 * i] * 3)
    np.testing.assert_array_equal(results[5][0], [1, 1])
    handle = hvd.allgather_async(jnp.full(1, me))
    hvd.barrier()
    result = hvd.synchronize(handle)
    assert isinstance(result, jax.Array)
    np.testing.assert_array_equal(result, [0, 1])
    assert hvd.synchronize(handle) is None
    with pytest.raises(ValueError, match="without _async"):
        jax.jit(lambda x: hvd.allreduce_async(x))(jnp.ones(1))


@both_modes
@on_all_ranks("shm4")
def test_process_sets(mode):
    from harness.jax_door import hvd, jnp, np, run
    from harness.sets import process_sets

    me = hvd.rank()
    with process_sets([0, 2], [1, 3]) as (even, odd):
        own, others = (even, [0, 2]) if me % 2 == 0 else (odd, [1, 3])
        total = run(mode, lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=own), jnp.full(3, float(me)))
        np.testing.assert_array_equal(total, [float(sum(others))] * 3)
        gathered = run(mode, lambda x: hvd.allgather(x, process_set=own), jnp.full(1, me))
        np.testing.assert_array_equal(gathered, others)
        sent = run(mode, lambda x: hvd.broadcast(x, root_rank=others[1], process_set=own), jnp.full(1, me))
        np.testing.assert_array_equal(sent, others[1:])
        with pytest.raises(ValueError, match="not a member"):
            run(mode, lambda x: hvd.allreduce(x, process_set=odd if own is even else even), jnp.ones(2))


@on_all_ranks("shm2")
def test_what_is_refused():
    from harness.jax_door import hvd, jax, jnp

    with pytest.raises(ValueError, match="bool"):
        jax.jit(hvd.allreduce)(jnp.ones(2, bool))
    with pytest.raises(ValueError, match="scalar"):
        jax.jit(hvd.allgather)(jnp.ones(()))
    with pytest.raises(ValueError, match="evenly"):
        jax.jit(hvd.alltoall)(jnp.ones(3))
    with pytest.raises(ValueError, match="one array, not a tree of 2"):
        hvd.alltoall({"a": jnp.ones(2), "b": jnp.ones(2)})
    with pytest.raises(ValueError, match="root rank 7"):
        jax.jit(lambda x: hvd.broadcast(x, 7))(jnp.ones(3))
    with pytest.raises(ValueError, match="complex64 is not supported"):
        hvd.allreduce(jnp.ones(2, jnp.complex64))
    with pytest.raises(ValueError, match="key_data"):
        hvd.broadcast(jax.random.key(0), 0)
    with pytest.raises(ValueError, match="either op or"):
        hvd.allreduce(jnp.ones(2), average=True, op=hvd.Sum)
    for run in (lambda function: function, jax.jit):
        with pytest.raises(ValueError, match="A tensor's name must be a string"):
            run(lambda x: hvd.allreduce(x, name="a\ud800b"))(jnp.ones(2))
    assert set(FLOATS) <= set(DTYPES)


@on_all_ranks("shm2")
def test_integers_that_jax_would_cut_off_are_refused():
    """Without 64-bit types, JAX converts NumPy's int64 to int32 without a warning."""
    from harness.jax_door import hvd, jax, np

    large, small = np.array([2**40 + hvd.rank(), -1]), np.array([2**30 + hvd.rank(), -(2**31)])
    jax.config.update("jax_enable_x64", False)
    try:
        for call in (
            lambda: hvd.allreduce(large, op=hvd.Sum),
            lambda: hvd.allreduce(large, op=hvd.Sum, compression=hvd.Compression.fp16),
            lambda: hvd.allgather_async([small, large]),
            lambda: hvd.alltoall(np.array([3, 2**32], np.uint64)),
            lambda: hvd.broadcast_parameters({"step": np.int64(2**31)}, 0),
        ):
            with pytest.raises(ValueError, match=r"int64 values from .* to .* do not fit into u?int32.*jax_enable_x64"):
                call()
        assert hvd.allreduce(small, op=hvd.Max).tolist() == [2**30 + 1, -(2**31)]
        assert hvd.broadcast(np.zeros((0, 2), np.int64), 0).shape == (0, 2)
        step = hvd.broadcast_object(2**40 if hvd.rank() == 0 else None, 0)
    finally:
        jax.config.update("jax_enable_x64", True)
    assert step == 2**40
    assert hvd.allreduce(large, op=hvd.Max).tolist() == [2**40 + 1, -1]
