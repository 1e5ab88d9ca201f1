# SPDX-License-Identifier: Apache-2.0
"""Collectives under grad, vmap, scan, cond and checkpoint, and several copies of one call in one program."""

import pytest
from harness.worlds import on_all_ranks

WORLDS = ("shm2", "shm4")
both_modes = pytest.mark.parametrize("mode", ["eager", "jit"])


@pytest.mark.checked_numbers("gradients of collectives", against="the exact values")
@both_modes
@on_all_ranks(*WORLDS, limit_s=60)
def test_gradients_are_those_of_the_other_doors(mode):
    from harness.jax_door import hvd, jax, jnp, np, run

    from horovod.common.rules import rows_of

    me, size = hvd.rank(), hvd.size()
    rows = size + 1  # so that the shares are uneven
    weights = [np.arange(rows * size * 3, dtype=np.float64).reshape(-1, 3) * (rank + 1) for rank in range(size)]
    mean = sum(weights) / size

    def gradient(collective, shape):
        def loss(x):
            out = collective(x)
            return (out * jnp.asarray(weights[me][: out.shape[0]])).sum()

        return run(mode, jax.grad(loss), jnp.ones(shape))

    def check(result, expected):
        np.testing.assert_allclose(result, expected, rtol=1e-12)

    check(gradient(lambda x: hvd.allreduce(x), (2, 3)), mean[:2])
    factors = {"prescale_factor": 2.0, "postscale_factor": 0.5}
    check(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum, **factors), (2, 3)), mean[:2] * size)
    check(gradient(lambda x: hvd.allgather(x), (2, 3)), mean[2 * me : 2 * me + 2])
    check(gradient(lambda x: hvd.broadcast(x, 1), (2, 3)), mean[:2] * (me == 1))
    back = np.concatenate([weights[rank][me : me + 1] for rank in range(size)])
    check(gradient(lambda x: hvd.alltoall(x), (size, 3)), back)
    scattered = np.concatenate([weights[rank][: rows_of(rank, rows, size)] for rank in range(size)])
    check(gradient(lambda x: hvd.reducescatter(x), (rows, 3)), scattered)
    check(gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum), (rows, 3)), scattered * size)


@both_modes
@on_all_ranks("shm2")
def test_gradient_of_a_tree_with_integers(mode):
    from harness.jax_door import hvd, jax, jnp, np, run

    def loss(tree, count):
        reduced = hvd.allreduce({**tree, "count": count}, op=hvd.Sum)
        return (reduced["a"] ** 2).sum() + reduced["b"].sum() * reduced["count"]

    tree = {"a": jnp.arange(3.0) + hvd.rank(), "b": jnp.ones(2)}
    gradients = run(mode, jax.grad(loss), tree, jnp.int32(3))
    np.testing.assert_allclose(gradients["a"], 2 * 2 * (2 * np.arange(3) + 1))
    np.testing.assert_allclose(gradients["b"], [2 * 6.0] * 2)
    with pytest.raises(NotImplementedError, match="op=hvd.Max has no gradient"):
        run(mode, jax.grad(lambda x: hvd.allreduce(x, op=hvd.Max).sum()), jnp.ones(2))


@both_modes
@on_all_ranks("shm2")
def test_vmap(mode):
    from harness.jax_door import hvd, jax, jnp, np, run

    me = hvd.rank()
    x = jnp.arange(24.0).reshape(2, 4, 3) * (me + 1)  # vmap maps the first dimension, or the last one
    both = [np.arange(24.0).reshape(2, 4, 3) * (rank + 1) for rank in range(2)]
    summed = run(mode, jax.vmap(lambda a: hvd.allreduce(a, op=hvd.Sum), in_axes=2), x)
    np.testing.assert_array_equal(summed, np.moveaxis(both[0] + both[1], 2, 0))
    gathered = run(mode, jax.vmap(hvd.allgather), x)
    np.testing.assert_array_equal(gathered, np.concatenate(both, axis=1))
    shares = run(mode, jax.vmap(lambda a: hvd.reducescatter(a, op=hvd.Sum)), x)
    np.testing.assert_array_equal(shares, (both[0] + both[1])[:, 2 * me : 2 * me + 2])
    exchanged = run(mode, jax.vmap(hvd.alltoall), x)
    rows = slice(2 * me, 2 * me + 2)
    np.testing.assert_array_equal(exchanged, np.concatenate([both[0][:, rows], both[1][:, rows]], axis=1))
    gradient = run(mode, jax.grad(lambda a: jax.vmap(lambda b: hvd.allreduce(b) * b)(a).sum()), x)
    np.testing.assert_allclose(gradient, 2 * (both[0] + both[1]) / 2)


@on_all_ranks("shm2")
def test_scan_cond_and_while():
    from harness.jax_door import hvd, jax, jnp, np

    me = hvd.rank()

    @jax.jit
    def scanned(x):
        def step(carry, row):
            carry = hvd.allreduce(carry + row)
            return carry, carry.sum()

        return jax.lax.scan(step, jnp.zeros(3), x)

    rows = [np.arange(30.0).reshape(10, 3) + rank for rank in range(2)]
    carry, sums = scanned(jnp.asarray(rows[me]))
    expected = np.cumsum((rows[0] + rows[1]) / 2, axis=0)
    np.testing.assert_allclose(carry, expected[-1])
    np.testing.assert_allclose(sums, expected.sum(1))
    gradient = jax.jit(jax.grad(lambda x: scanned(x)[1].sum()))(jnp.asarray(rows[me]))
    np.testing.assert_allclose(gradient, np.repeat(np.arange(10, 0, -1.0)[:, None], 3, axis=1))

    @jax.jit
    def looped(x, doubled):
        x = jax.lax.while_loop(lambda v: v.max() < 100, lambda v: hvd.allreduce(v, op=hvd.Sum), x)
        return jax.lax.cond(doubled, lambda v: hvd.allreduce(v, op=hvd.Sum), lambda v: v, x)

    np.testing.assert_array_equal(looped(jnp.full(2, me + 1.0), True), [384.0] * 2)
    np.testing.assert_array_equal(looped(jnp.full(2, me + 1.0), False), [192.0] * 2)


@on_all_ranks(*WORLDS)
def test_a_jitted_function_called_several_times_in_one_program():
    from harness.jax_door import hvd, jax, jnp, np

    me, size = hvd.rank(), hvd.size()
    inner = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))

    @jax.jit
    def outer(xs):
        # The calls are independent, so XLA may run them in any order and several at once.
        return [inner(x * (index + 1)) for index, x in enumerate(xs)]

    for count in (8, 1 << 15):
        xs = [np.full(count, float(me + 10 * index)) for index in range(12)]
        for index, result in enumerate(outer(xs)):
            expected = sum(rank + 10 * index for rank in range(size)) * (index + 1)
            np.testing.assert_array_equal(result, np.full(count, float(expected)))

    block = jax.checkpoint(lambda w, x: jnp.tanh(hvd.allreduce(w * x)))
    gradient = jax.jit(jax.grad(lambda w, x: block(w, block(w, x)).sum()))
    w = jnp.float64(0.5)

    def plain(w, x):
        return jnp.tanh(w * jnp.tanh(w * x)).sum()

    x = jnp.arange(3.0)  # equal on all ranks, so that the average changes nothing
    np.testing.assert_allclose(gradient(w, x), jax.grad(plain)(w, x))


@on_all_ranks("shm2")
def test_traces_may_differ_in_number():
    from harness.jax_door import hvd, jax, jnp, np

    function = jax.jit(lambda x: hvd.allreduce(x) + hvd.allreduce(2 * x))
    if hvd.rank() == 0:
        jax.eval_shape(function, jnp.ones(5))
        function.lower(jnp.ones(5)).compile()
        jax.make_jaxpr(function)(jnp.ones(7))
    np.testing.assert_array_equal(function(jnp.full(5, float(hvd.rank()))), [1.5] * 5)


@on_all_ranks("shm2")
def test_calls_of_one_function_keep_their_order():
    from harness.jax_door import hvd, jax, jnp, np

    me = hvd.rank()

    @jax.jit
    def evaluate(x):
        return hvd.allreduce((x @ x).sum()) + hvd.allreduce(x[0, 0])

    results = [evaluate(jnp.full((64, 64), float(index + me))) for index in range(20)]
    for index, result in enumerate(results):
        np.testing.assert_allclose(result, 64**3 * (index**2 + (index + 1) ** 2) / 2 + index + 0.5)


@on_all_ranks("shm2")
def test_other_python_threads_run_during_a_collective():
    import threading

    from harness.jax_door import hvd, jax, jnp, np

    function = jax.jit(lambda x: hvd.allreduce(x, name="late"))
    function(jnp.ones(2))
    arrived = threading.Event()
    if hvd.rank() == 0:
        # The other rank's thread can answer only if its main thread releases the interpreter while it waits.
        hvd.barrier()
        hvd.broadcast_object("go", root_rank=0, name="message")
        np.testing.assert_array_equal(function(jnp.zeros(2)), [0.5] * 2)
    else:
        thread = threading.Thread(
            target=lambda: (hvd.broadcast_object(None, root_rank=0, name="message"), arrived.set()), daemon=True
        )
        hvd.barrier()
        thread.start()
        np.testing.assert_array_equal(function(jnp.ones(2)), [0.5] * 2)
        thread.join(20)
        assert arrived.is_set()
