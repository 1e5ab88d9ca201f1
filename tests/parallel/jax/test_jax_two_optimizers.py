# SPDX-License-Identifier: Apache-2.0
"""Two optimizers or sets of gradients in one program whose parameters have equal names and shapes."""

import copy
import pickle

import numpy as np
import pytest
from harness.worlds import on_all_ranks

STEPS, BATCH = 3, 8


def _data():
    random = np.random.default_rng(11)
    return random.normal(size=(STEPS, BATCH, 4)), random.normal(size=(STEPS, BATCH))


def _params(decoder=(4,)):
    random = np.random.default_rng(5)
    return [{"weight": random.normal(size=shape), "bias": random.normal()} for shape in ((4,), decoder)]


def _loss(encoder, decoder, x, y):
    """Return a loss of both models that treats them differently."""
    hidden = x * encoder["weight"] + encoder["bias"]
    return (((hidden @ decoder["weight"]).ravel() + decoder["bias"] - y) ** 2).mean()


def _step(mode, optimizers, gradient):
    import optax
    from harness.jax_door import jax

    def step(params, states, x, y):
        gradients = gradient(*params, x, y)
        pairs = [one.update(*rest) for one, *rest in zip(optimizers, gradients, states, params, strict=True)]
        return [optax.apply_updates(one, pair[0]) for one, pair in zip(params, pairs, strict=True)], [
            pair[1] for pair in pairs
        ]

    return jax.jit(step) if mode == "jit" else step


def _train(mode, optimizers, gradient, xs, ys, decoder=(4,)):
    from harness.jax_door import jax, jnp

    step = _step(mode, optimizers, gradient)
    params = jax.tree_util.tree_map(jnp.asarray, _params(decoder))
    states = [optimizer.init(one) for optimizer, one in zip(optimizers, params, strict=True)]
    for x, y in zip(xs, ys, strict=True):
        params, states = step(params, states, jnp.asarray(x), jnp.asarray(y))
    return params


def _check(params, expected):
    for one, other in zip(params, expected, strict=True):
        for name, value in other.items():
            np.testing.assert_allclose(one[name], value, rtol=1e-9, err_msg=name)


@pytest.mark.checked_numbers(
    "two JAX optimizers with equal parameter names, made in different orders on the ranks", against="a single process"
)
@pytest.mark.parametrize("decoder", [(4,), (4, 1)], ids=str)
@pytest.mark.parametrize("mode", ["eager", "jit"])
@on_all_ranks("shm2", limit_s=60)
def test_two_optimizers_with_equal_names(mode, decoder):
    """Train two models of equal shapes, and two of different shapes."""
    import optax
    from harness.jax_door import hvd, jax

    xs, ys = _data()
    share = BATCH // hvd.size()
    rows = slice(hvd.rank() * share, (hvd.rank() + 1) * share)
    plain = [optax.sgd(0.05), optax.sgd(0.02)]
    gradient = jax.grad(_loss, argnums=(0, 1))
    alone = _train("jit", plain, gradient, xs, ys, decoder)
    for options in ({}, {"name": "gradients"}):
        wrapped = {}
        for index in (0, 1) if hvd.rank() % 2 else (1, 0):
            wrapped[index] = hvd.DistributedOptimizer(plain[index], **options)
        together = _train(mode, [wrapped[0], wrapped[1]], gradient, xs[:, rows], ys[:, rows], decoder)
        _check(together, alone)


@pytest.mark.checked_numbers("two JAX optimizers in two worlds, new ones on one rank", against="a single process")
@pytest.mark.parametrize("mode", ["eager", "jit"])
@on_all_ranks("shm2", limit_s=60)
def test_a_new_world(mode):
    """Rank 0 keeps its optimizers and its compiled functions."""
    import optax
    from harness.jax_door import hvd, jax, jnp

    xs, ys = _data()
    rows = slice(hvd.rank() * 4, hvd.rank() * 4 + 4)
    plain = [optax.sgd(0.05), optax.sgd(0.02)]
    gradient = jax.grad(_loss, argnums=(0, 1))

    def made():
        return _step(mode, [hvd.DistributedOptimizer(one) for one in plain], gradient)

    step, params = made(), jax.tree_util.tree_map(jnp.asarray, _params())
    states = [optimizer.init(one) for optimizer, one in zip(plain, params, strict=True)]
    for number in range(STEPS):
        if number:
            hvd.shutdown()
            hvd.init()
            step = made() if hvd.rank() == 1 else step
        params, states = step(params, states, jnp.asarray(xs[number, rows]), jnp.asarray(ys[number, rows]))
    _check(params, _train("jit", plain, gradient, xs, ys))


@pytest.mark.checked_numbers("two hvd.grad of one JAX program, with equal names", against="a single process")
@on_all_ranks("shm2", limit_s=60)
def test_two_sets_of_gradients_with_equal_names():
    import optax
    from harness.jax_door import hvd, jax

    xs, ys = _data()
    rows = slice(hvd.rank() * 4, hvd.rank() * 4 + 4)
    plain = [optax.sgd(0.05), optax.sgd(0.02)]
    alone = _train("jit", plain, jax.grad(_loss, argnums=(0, 1)), xs, ys)
    for name in (None, "gradients"):

        def both(encoder, decoder, x, y, name=name):
            return [hvd.grad(_loss, argnums=index, name=name)(encoder, decoder, x, y) for index in (0, 1)]

        _check(_train("jit", plain, both, xs[:, rows], ys[:, rows]), alone)


@pytest.mark.checked_numbers("two named JAX optimizers that ranks call in different orders", against="a single process")
@on_all_ranks("shm2", limit_s=60)
def test_names_of_their_own_let_ranks_differ_in_the_order_of_calls():
    """Names allow other orders in a compiled program. Outside jit the orders must match, because each call waits."""
    import optax
    from harness.jax_door import hvd, jax

    xs, ys = _data()
    rows = slice(hvd.rank() * 4, hvd.rank() * 4 + 4)
    plain = [optax.sgd(0.05), optax.sgd(0.02)]
    alone = _train("jit", plain, jax.grad(_loss, argnums=(0, 1)), xs, ys)
    order = (0, 1) if hvd.rank() else (1, 0)

    def both(encoder, decoder, x, y):
        results = {i: hvd.grad(_loss, argnums=i, name=f"model {i}")(encoder, decoder, x, y) for i in order}
        return results[0], results[1]

    _check(_train("jit", plain, both, xs[:, rows], ys[:, rows]), alone)


@pytest.mark.checked_numbers(
    "three JAX optimizers, of overlapping process sets, after two backward passes", against="the mean"
)
@pytest.mark.parametrize("mode", ["eager", "jit"])
@on_all_ranks("shm4", limit_s=60)
def test_three_optimizers_of_process_sets_with_several_passes(mode):
    import optax
    from harness.jax_door import hvd, jax, jnp
    from harness.sets import process_sets

    with process_sets([0, 1, 2], [1, 2, 3]) as (first, second):
        mine = [(number, it) for number, it in enumerate((first, second, second)) if it.included()]
        passes = {"backward_passes_per_step": 2, "average_aggregated_gradients": True}
        optimizers = [hvd.DistributedOptimizer(optax.sgd(1.0), process_set=it, **passes) for _, it in mine]

        def step(params, states):
            changed = []
            for (number, _), optimizer, one, state in zip(mine, optimizers, params, states, strict=True):
                gradient = {"w": jnp.full(3, 10.0**number) * (1 + hvd.rank())}
                updates, state = optimizer.update(gradient, state, one)
                changed.append((optax.apply_updates(one, updates), state))
            return list(zip(*changed, strict=True))

        step = jax.jit(step) if mode == "jit" else step
        params = [{"w": jnp.zeros(3)} for _ in optimizers]
        states = [optimizer.init(one) for optimizer, one in zip(optimizers, params, strict=True)]
        for _ in range(4):
            params, states = step(params, states)
        for (number, it), one in zip(mine, params, strict=True):
            np.testing.assert_allclose(one["w"], np.full(3, -2 * (1 + np.mean(it.ranks)) * 10.0**number))


@pytest.mark.checked_numbers(
    "JAX gradients that are NaN on one rank, with optax.apply_if_finite", against="a single process"
)
@on_all_ranks("shm2", limit_s=60)
def test_a_step_that_is_not_finite_on_one_rank_is_left_out_on_all():
    """The reduction is outermost, so that all ranks see the reduced gradient and decide alike."""
    import optax
    from harness.jax_door import hvd, jax, jnp

    def train(optimizer, gradients):
        update = jax.jit(optimizer.update)
        params = {"w": jnp.ones(3)}
        state = optimizer.init(params)
        for gradient in gradients:
            updates, state = update({"w": gradient}, state, params)
            params = optax.apply_updates(params, updates)
        return np.asarray(params["w"])

    guarded = optax.apply_if_finite(optax.adam(0.1), max_consecutive_errors=5)
    gradients = [[jnp.full(3, 1.0 + rank + step) for step in range(6)] for rank in range(2)]
    gradients[1][2] = jnp.array([1.0, jnp.nan, 1.0])
    gradients[0][4] = jnp.array([jnp.inf, 1.0, 1.0])
    mean = [(first + second) / 2 for first, second in zip(*gradients, strict=True)]
    result = train(hvd.DistributedOptimizer(guarded), gradients[hvd.rank()])
    np.testing.assert_allclose(result, train(guarded, mean), rtol=1e-12)
    assert np.isfinite(result).all()
    return result.tolist()


@pytest.mark.parametrize("mode", ["eager", "jit"])
@on_all_ranks("shm2", limit_s=60)
def test_a_guard_around_the_reduction_is_refused(mode):
    """The guard would decide on each rank by that rank's own gradients."""
    import optax
    from harness.jax_door import hvd, jax, jnp

    params = {"w": jnp.ones(3)}
    optimizer = optax.apply_if_finite(hvd.DistributedOptimizer(optax.sgd(0.1)), max_consecutive_errors=5)
    update = jax.jit(optimizer.update) if mode == "jit" else optimizer.update
    with pytest.raises(ValueError, match=r"Wrap in the other order: hvd.DistributedOptimizer\(optax.apply_if_finite"):
        update(params, optimizer.init(params), params)
    assert hvd.allreduce(jnp.ones(2), op=hvd.Sum).tolist() == [2, 2]


@on_all_ranks("shm2", limit_s=60)
def test_copies_of_an_optimizer_reduce_like_the_optimizer():
    """Copies share the functions of an optax transformation; the caller holds the state."""
    import optax
    from harness.jax_door import hvd, jnp

    distributed = hvd.DistributedOptimizer(optax.sgd(1.0))
    gradient = jnp.full(2, 2.0 * hvd.rank())
    for way in (copy.copy, copy.deepcopy):
        copied = way(distributed)
        updates, _ = copied.update(gradient, copied.init(gradient))
        assert updates.tolist() == [-1.0, -1.0]
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):  # no optax transformation can be pickled
        pickle.dumps(distributed)
