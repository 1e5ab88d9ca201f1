# SPDX-License-Identifier: Apache-2.0
"""hvd.DiLoCo and hvd.LocalSGD of JAX against NumPy, with saved states, other dtypes and refused trees."""

import pickle

import numpy as np
import pytest
from harness import diloco_reference as reference
from harness.worlds import on_all_ranks

EVERY = 3


def training(**options):
    """Return parameters, a jitted step that donates them, and an object made with these options."""
    from harness.jax_door import hvd, jax, jnp

    params = jax.tree_util.tree_map(jnp.asarray, {"net": reference.initial(hvd.rank())})
    targets = {name: jnp.asarray(reference.target(hvd.rank(), name)) for name in reference.SHAPES}

    def step(params):
        moved = {name: value - reference.RATE * (value - targets[name]) for name, value in params["net"].items()}
        return {"net": moved}

    kind = hvd.LocalSGD if options.pop("averages", False) else hvd.DiLoCo
    return params, jax.jit(step, donate_argnums=0), kind(params, every=EVERY, **options)


def bits(params):
    return [np.asarray(value).tobytes() for _, value in sorted(params["net"].items())]


def check(params, expected, tolerance=1e-5):
    for name, value in params["net"].items():
        np.testing.assert_allclose(np.asarray(value), expected[name], rtol=tolerance, atol=tolerance)


@on_all_ranks("shm2", "tcp2")
@pytest.mark.checked_numbers("hvd.DiLoCo and hvd.LocalSGD of JAX, round by round", against="NumPy")
@pytest.mark.parametrize("averages", [False, True])
def test_rounds_against_numpy(averages):
    from harness.jax_door import hvd

    rule = {"rate": 1.0, "momentum": 0.0, "nesterov": False} if averages else {}
    expected = reference.trained(hvd.size(), 4 * EVERY, EVERY, **rule)
    params, step, diloco = training(averages=averages)
    params = diloco.begin(params)
    found = []
    for number in range(1, 4 * EVERY + 1):
        params = diloco.step(step(params))
        if number % EVERY == 0:
            check(params, expected[number // EVERY - 1])
            found.append(bits(params))
    params = diloco.finish(params)
    check(params, expected[-1])
    return found, bits(params)


@on_all_ranks("shm2")
def test_a_saved_training_continues_with_the_same_bits():
    params, step, diloco = training()
    params = diloco.begin(params)
    ends = []
    for number in range(3 * EVERY):
        if number == EVERY + 1:
            saved = pickle.dumps((np.asarray(params["net"]["a"]), np.asarray(params["net"]["b"]), diloco.state_dict()))
        params = diloco.step(step(params))
    ends.append(bits(diloco.finish(params)))

    from harness.jax_door import jnp

    _, step, diloco = training()
    a, b, state = pickle.loads(saved)
    diloco.load_state_dict(state)
    params = {"net": {"a": jnp.asarray(a), "b": jnp.asarray(b)}}
    for _ in range(EVERY + 1, 3 * EVERY):
        params = diloco.step(step(params))
    ends.append(bits(diloco.finish(params)))
    assert ends[0] == ends[1]
    return ends


@on_all_ranks("shm2")
def test_bfloat16_and_refused_trees():
    from harness.jax_door import hvd, jax, jnp

    params = {"w": jnp.full(4, 1.0 + hvd.rank(), jnp.bfloat16), "v": np.full(2, 3.0, np.float32)}
    averaging = hvd.LocalSGD(params, every=1)
    params = averaging.begin(params)
    params = averaging.finish(averaging.step({**params, "w": params["w"] + 2 * hvd.rank()}))
    assert params["w"].dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(params["w"], np.float32), 2.0)
    with pytest.raises(ValueError, match=r"params\['n'\] has the dtype int32"):
        hvd.DiLoCo({"w": params["w"], "n": jnp.zeros(2, jnp.int32)}, every=1)
    with pytest.raises(ValueError, match="fragments=2 is more than the 1 layers"):
        hvd.DiLoCo({"w": params["w"]}, every=4, fragments=2)
    with pytest.raises(ValueError, match="wire must be one of"):
        hvd.DiLoCo(params, every=4, wire="fp8")
    other = hvd.DiLoCo(params, every=1)
    with pytest.raises(ValueError, match="make a new object for another model"):
        other.begin({"w": params["w"]})
    with pytest.raises(ValueError, match="between jitted steps"):
        jax.jit(other.begin)(params)
