# SPDX-License-Identifier: Apache-2.0
"""Training: K workers get the weights of one worker on all of the data; broadcasts of parameters, keys and objects."""

import numpy as np
import pytest
from harness.worlds import on_all_ranks

WORLDS = ("shm2", "shm4")
STEPS, BATCH = 5, 8


def _data():
    random = np.random.default_rng(7)
    return random.normal(size=(STEPS, BATCH, 4)), random.normal(size=(STEPS, BATCH))


def _loss(params, x, y):
    from harness.jax_door import jnp

    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return ((hidden @ params["w2"] - y) ** 2).mean()


def _params(seed=3):
    random = np.random.default_rng(seed)
    return {"w1": random.normal(size=(4, 6)), "b1": random.normal(size=6), "w2": random.normal(size=6)}


def _train(optimizer, gradient, xs, ys):
    import optax
    from harness.jax_door import jax, jnp

    params = jax.tree_util.tree_map(jnp.asarray, _params())
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, x, y):
        updates, state = optimizer.update(gradient(_loss)(params, x, y), state, params)
        return optax.apply_updates(params, updates), state

    for x, y in zip(xs, ys, strict=True):
        params, state = step(params, state, x, y)
    return params


def _check(params, expected):
    for name, value in expected.items():
        np.testing.assert_allclose(params[name], value, rtol=1e-9, err_msg=name)


@pytest.mark.checked_numbers("training with DistributedOptimizer", against="a single process")
@on_all_ranks(*WORLDS, limit_s=60)
def test_k_workers_equal_one():
    import optax
    from harness.jax_door import hvd, jax

    xs, ys = _data()
    share = BATCH // hvd.size()
    rows = slice(hvd.rank() * share, (hvd.rank() + 1) * share)
    mine = xs[:, rows], ys[:, rows]
    alone = _train(optax.adam(0.05), jax.grad, xs, ys)
    _check(_train(hvd.DistributedOptimizer(optax.adam(0.05)), jax.grad, *mine), alone)
    _check(_train(optax.adam(0.05), hvd.grad, *mine), alone)
    predivided = hvd.DistributedOptimizer(optax.adam(0.05), gradient_predivide_factor=2.0, name="predivided")
    _check(_train(predivided, jax.grad, *mine), alone)
    halves = hvd.DistributedOptimizer(optax.sgd(0.05), compression=hvd.Compression.fp16)
    for name, value in _train(halves, jax.grad, *mine).items():
        assert np.abs(value - _train(optax.sgd(0.05), jax.grad, xs, ys)[name]).max() < 1e-2


@on_all_ranks("shm2", limit_s=60)
def test_several_backward_passes_for_a_step():
    import optax
    from harness.jax_door import hvd, jax

    xs, ys = _data()
    rows = slice(hvd.rank() * 4, hvd.rank() * 4 + 4)
    # A step of one worker corresponds to two passes of two workers, each over half of the worker's rows.
    halves = [(x[rows][half], y[rows][half]) for x, y in zip(xs, ys, strict=True) for half in (slice(2), slice(2, 4))]
    alone = _train(optax.sgd(0.05), jax.grad, xs, ys)
    mean = hvd.DistributedOptimizer(optax.sgd(0.05), backward_passes_per_step=2, average_aggregated_gradients=True)
    _check(_train(mean, jax.grad, *zip(*halves, strict=True)), alone)
    total = hvd.DistributedOptimizer(optax.sgd(0.025), backward_passes_per_step=2)
    _check(_train(total, jax.grad, *zip(*halves, strict=True)), alone)
    with pytest.raises(ValueError, match="only with op=Average"):
        hvd.DistributedOptimizer(optax.sgd(0.1), op=hvd.Sum, gradient_predivide_factor=2.0)


@pytest.mark.checked_numbers("Adam's first updates, each after 8 backward passes", against="the exact values")
@on_all_ranks("shm2", limit_s=60)
def test_bias_correction_counts_updates():
    import optax
    from harness.jax_door import hvd, jax, jnp

    optimizer = hvd.DistributedOptimizer(optax.adam(0.01), backward_passes_per_step=8)
    weight, update = jnp.zeros(()), jax.jit(optimizer.update)
    state, places = optimizer.init(weight), []
    for _ in range(3):
        for _ in range(8):
            change, state = update(-jnp.ones(()), state, weight)
            weight += change
        places.append(float(weight))
    np.testing.assert_allclose(places, [0.01, 0.02, 0.03], rtol=1e-5)


@pytest.mark.checked_numbers("value_and_grad", against="the exact values")
@on_all_ranks("shm2")
def test_value_and_grad():
    from harness.jax_door import hvd, jax, jnp

    def loss(w, x):
        return (w * x).sum(), x.sum()

    x = jnp.arange(3.0) + hvd.rank()
    (value, aux), gradient = jax.jit(hvd.value_and_grad(loss, has_aux=True, op=hvd.Sum))(jnp.ones(3), x)
    np.testing.assert_allclose([value, aux], [x.sum()] * 2)
    np.testing.assert_allclose(gradient, [1.0, 3.0, 5.0])
    gradient, aux = hvd.grad(loss, has_aux=True)(jnp.ones(3), x)
    np.testing.assert_allclose(gradient, [0.5, 1.5, 2.5])
    np.testing.assert_allclose(aux, x.sum())


@on_all_ranks("shm2")
def test_parameters_keys_and_objects():
    import optax
    from harness.jax_door import hvd, jax, jnp

    me = hvd.rank()
    params = jax.tree_util.tree_map(jnp.asarray, _params(seed=me))
    tree = {
        "params": params,
        "state": optax.adam(0.1).init(params),
        "key": jax.random.key(me),
        "step": me,
        "half": jnp.full(3, me, jnp.bfloat16),
        "function": np.tanh,
        "nothing": None,
    }
    sent = hvd.broadcast_parameters(tree, root_rank=1)
    _check(sent["params"], _params(seed=1))
    assert sent["step"] == 1
    assert isinstance(sent["step"], int)
    assert sent["function"] is np.tanh
    assert sent["half"].dtype == jnp.bfloat16
    assert jax.random.key_data(sent["key"]).tolist() == jax.random.key_data(jax.random.key(1)).tolist()
    same = hvd.allgather_object(jax.random.normal(sent["key"]).item())
    assert same[0] == same[1]
    own = hvd.allgather_object(jax.random.normal(hvd.fold_in_rank(sent["key"])).item())
    assert own[0] != own[1]
    assert hvd.broadcast_object({"epoch": me}, root_rank=1, name="epoch") == {"epoch": 1}
    assert hvd.broadcast_object({"rate": 0.1} if me == 0 else None, 0) == {"rate": 0.1}
    assert hvd.allgather_object(me or None) == [None, *range(1, hvd.size())]
    return own


@on_all_ranks("shm2")
def test_join():
    from harness.jax_door import hvd, jax, jnp

    step = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
    step(jnp.ones(3))
    for _ in range(1 + 2 * hvd.rank()):
        total = step(jnp.full(3, 2.0))
    if hvd.rank() == 1:
        np.testing.assert_array_equal(total, [2.0] * 3)
    assert hvd.join() == 1


@on_all_ranks("shm2", limit_s=60)
def test_elastic_state_goes_on_from_the_last_commit():
    import functools

    from harness.jax_door import hvd, jax, jnp

    me = hvd.rank()
    state = hvd.elastic.JaxState(params={"w": jnp.full(3, float(me))}, key=jax.random.key(me), epoch=me, log=[str(me)])
    failures = iter([True])

    @functools.partial(jax.jit, donate_argnums=0)
    def step(params):
        return {"w": params["w"] + hvd.allreduce(jnp.ones(3), op=hvd.Sum)}

    @hvd.elastic.run
    def train(state):
        start = state.epoch
        while state.epoch < 4:
            state.params = step(state.params)
            state.epoch += 1
            if state.epoch == 3 and next(failures, False):
                raise hvd.HorovodInternalError("a worker was lost")
            state.log.append(f"epoch {state.epoch}")
            state.commit()
        return start

    assert train(state) == 2  # the second start continues from the commit of epoch 2
    np.testing.assert_array_equal(state.params["w"], [8.0] * 3)
    assert state.log == ["0", "epoch 1", "epoch 2", "epoch 3", "epoch 4"]
    assert jax.random.key_data(state.key).tolist() == jax.random.key_data(jax.random.key(0)).tolist()


@on_all_ranks("shm2", limit_s=60)
def test_commits_are_kept_in_turns_and_outlive_the_job():
    import tempfile
    from pathlib import Path

    from harness.jax_door import hvd, jax, jnp

    from horovod.common.checkpoint_file import read, write
    from horovod.common.lineage import start_lineage

    def tree(value):
        return {"w": jnp.full((3, 2), value), "half": [jnp.full(4, value, jnp.bfloat16)], "fixed": None}

    state = hvd.elastic.JaxState(params=tree(0.0), step=0, log=[])
    for step in range(1, 6):
        state.params, state.step = tree(float(step)), step
        state.log.append(step)
        state.save()
        leaves = jax.tree_util.tree_leaves(state._saved["params"])
        assert all((leaf == step).all() for leaf in leaves)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "x", state.pin_commit(), start_lineage())
        state.release_commit()
        loaded = read(Path(folder) / "x")
    later = hvd.elastic.JaxState(params=tree(0.0), step=0, log=[])
    later.load_commit(loaded)
    assert (later.step, later.log) == (5, [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(later.params["w"], state.params["w"])
    assert later.params["half"][0].dtype == jnp.bfloat16
    with pytest.raises(ValueError, match="does not fit"):
        hvd.elastic.JaxState(params={"w": jnp.zeros(7)}, step=0, log=[]).load_commit(loaded)
