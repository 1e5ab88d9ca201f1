# SPDX-License-Identifier: Apache-2.0
"""PowerSGD, Deep Gradient Compression and 1-bit Adam in JAX against NumPy, with saved states and NaN on one rank."""

import pickle

import numpy as np
import pytest
from harness import compression_reference as reference
from harness.compressed_exchange import Simulation, onebit
from harness.worlds import on_all_ranks

ROWS, COLUMNS, RANK = 200, 100, 2
COUNT = ROWS * COLUMNS
STEPS = 4


def gradients(rank, step):
    """Return a matrix that is compressed, and a vector that stays dense."""
    random = np.random.default_rng(100 * step + rank)
    return {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in (("m", (ROWS, COLUMNS)), ("v", 5))
    }


def bits(tree):
    from harness.jax_door import jax

    return [np.asarray(leaf).tobytes() for leaf in jax.tree_util.tree_leaves(tree)]


class PowerReference:
    """PowerSGD of all ranks in float64."""

    def __init__(self, start_after, ranks):
        self.q = np.random.default_rng(0).uniform(-1, 1, COLUMNS * RANK).astype(np.float32).reshape(COLUMNS, RANK)
        self.left = [np.zeros((ROWS, COLUMNS))] * ranks
        self.steps, self.start_after = 0, start_after

    def step(self, everyone):
        self.steps += 1
        mean_v = np.mean([it["v"] for it in everyone], 0)
        if self.steps <= self.start_after:
            return {"m": np.mean([it["m"] for it in everyone], 0), "v": mean_v}
        matrices = [it["m"] + left for it, left in zip(everyone, self.left, strict=True)]
        p = np.linalg.qr(sum(matrices) @ self.q)[0]
        self.q = np.mean([it.T @ p for it in matrices], 0)
        mean = p @ self.q.T
        self.left = [it - mean for it in matrices]
        return {"m": mean, "v": mean_v}


class DgcReference:
    """Deep Gradient Compression of all ranks with momentum 0.5, norms clipped to 50, and a ramp of one step."""

    def __init__(self, ranks):
        self.u = [np.zeros(COUNT, np.float32)] * ranks
        self.left = [np.zeros(COUNT, np.float32)] * ranks
        self.v, self.steps = np.zeros(5), 0

    def step(self, everyone):
        ratio = 0.25 if self.steps < 1 else 0.05
        self.steps += 1
        limit = 50 / np.sqrt(len(everyone))
        total, clipped = np.zeros(COUNT, np.float32), []
        for rank, one in enumerate(everyone):
            norm = np.sqrt(sum(np.square(it).sum() for it in one.values()))
            clipped.append({name: it * np.float32(min(1, limit / norm)) for name, it in one.items()})
            self.u[rank] = clipped[rank]["m"].ravel() + np.float32(0.5) * self.u[rank]
            p = self.u[rank] + self.left[rank]
            sent = reference.topk_decode(reference.topk_encode(p, ratio), COUNT)
            self.left[rank] = p - sent
            self.u[rank] = np.where(self.left[rank] == 0, 0, self.u[rank])
            total += sent
        self.v = np.mean([it["v"] for it in clipped], 0) + 0.5 * self.v
        return {"m": (total / len(everyone)).reshape(ROWS, COLUMNS), "v": self.v}


def check(method, simulated, rtol=1e-3):
    """Compare steps with NumPy, continue from a saved state, and spoil a step."""
    import optax
    from harness.jax_door import hvd, jax, jnp

    optimizer = hvd.DistributedOptimizer(optax.identity(), compression=method)
    update = jax.jit(optimizer.update)
    mine = [jax.tree_util.tree_map(jnp.asarray, gradients(hvd.rank(), step)) for step in range(STEPS)]
    state = optimizer.init(mine[0])
    found, saved = [], b""
    for step, one in enumerate(mine):
        saved = pickle.dumps(state)
        reduced, state = update(one, state)
        expected = simulated.step([gradients(rank, step) for rank in range(hvd.size())])
        for name, value in expected.items():
            np.testing.assert_allclose(reduced[name], value, rtol=rtol, atol=1e-4, err_msg=f"{name} in step {step}")
        found += bits(reduced)
    assert bits(update(mine[-1], pickle.loads(saved))[0]) == found[-2:]
    spoilt = dict(mine[0], m=mine[0]["m"].at[3, 3].set(jnp.nan if hvd.rank() == 1 else 0))
    reduced, kept = update(spoilt, state)
    assert not np.isfinite(reduced["m"]).all()
    assert bits(kept.compression.shared) + bits(kept.compression.kept) == (
        bits(state.compression.shared) + bits(state.compression.kept)
    )
    return b"".join(found)


@pytest.mark.checked_numbers("JAX gradients by PowerSGD after a dense step", against="NumPy")
@on_all_ranks("shm2", limit_s=60)
def test_powersgd():
    import optax
    from harness.jax_door import hvd, jnp

    found = check(hvd.Compression.powersgd(RANK, start_after=1, scope="all"), PowerReference(1, hvd.size()))
    # Factors of full rank lose no information.
    full = hvd.Compression.powersgd(8, start_after=0, scope="all", min_rate=0.1, min_bytes=0)
    optimizer = hvd.DistributedOptimizer(optax.identity(), compression=full)
    gradient = jnp.asarray(gradients(hvd.rank(), 0)["m"][:8])
    reduced, _ = optimizer.update(gradient, optimizer.init(gradient))
    expected = np.mean([gradients(rank, 0)["m"][:8] for rank in range(hvd.size())], 0)
    np.testing.assert_allclose(reduced, expected, atol=1e-5)
    return found


@pytest.mark.checked_numbers("JAX gradients by Deep Gradient Compression", against="NumPy")
@on_all_ranks("shm2", limit_s=60)
def test_dgc():
    from harness.jax_door import hvd

    method = hvd.Compression.dgc(0.05, 0.5, clip=50.0, ramp=(0.75,), ramp_steps=1, scope="all")
    return check(method, DgcReference(hvd.size()))


class AdamReference:
    """1-bit Adam that freezes the variance after two steps."""

    def __init__(self, ranks):
        self.exchange = Simulation(range(ranks), onebit(), True)
        self.mean, self.variance, self.steps = np.zeros(COUNT, np.float32), np.zeros(COUNT, np.float32), 0

    def step(self, everyone):
        self.steps += 1
        b1, b2 = np.float32(0.9), np.float32(0.99)
        if self.steps <= 2:
            gradient = np.mean(everyone, 0)
            self.mean = b1 * self.mean + (1 - b1) * gradient
            self.variance = b2 * self.variance + (1 - b2) * gradient**2
        else:
            self.mean = self.exchange.step([b1 * self.mean + (1 - b1) * it for it in everyone])
        root = np.sqrt(self.variance / (1 - b2 ** min(self.steps, 2)))
        return -0.1 * self.mean / (1 - b1**self.steps) / (root + 1e-8)


@pytest.mark.checked_numbers("hvd.OneBitAdam of JAX before and after its variance is frozen", against="NumPy")
@on_all_ranks("shm2", limit_s=60)
def test_one_bit_adam():
    import optax
    from harness.jax_door import hvd, jax, jnp

    optimizer = hvd.OneBitAdam(0.1, b2=0.99, freeze_after=2, scope="all")
    alone = optax.adam(0.1, b2=0.99)
    update = jax.jit(optimizer.update)
    everyone = [[gradients(rank, step) for rank in range(hvd.size())] for step in range(STEPS)]
    mine = [jax.tree_util.tree_map(jnp.asarray, it[hvd.rank()]) for it in everyone]
    state, dense_state = optimizer.init(mine[0]), alone.init(mine[0])
    simulated = AdamReference(hvd.size())
    found, saved = [], b""
    for step, (all_ranks, one) in enumerate(zip(everyone, mine, strict=True)):
        saved = pickle.dumps(state)
        changes, state = update(one, state)
        mean = {name: jnp.mean(jnp.stack([it[name] for it in all_ranks]), 0) for name in one}
        dense, dense_state = alone.update(mean, dense_state)
        np.testing.assert_allclose(changes["v"], dense["v"], rtol=1e-4)
        expected = simulated.step([it["m"].ravel() for it in all_ranks]).reshape(ROWS, COLUMNS)
        np.testing.assert_allclose(changes["m"], expected, rtol=1e-3, atol=1e-4, err_msg=f"step {step}")
        assert int(state.frozen_at) == (2 if step else 0)
        found += bits(changes)
    assert bits(update(mine[-1], pickle.loads(saved))[0]) == found[-2:]
    spoilt = dict(mine[0], m=mine[0]["m"] * (jnp.inf if hvd.rank() else 1))
    changes, kept = update(spoilt, state)
    assert not any(np.any(it) for it in changes.values())
    assert int(kept.skipped) == 1
    assert bits(kept._replace(skipped=state.skipped)) == bits(state)
    with pytest.raises(ValueError, match="freeze_after None or at least 1, not 0 and 0"):
        hvd.OneBitAdam(0.1, freeze_after=0)
    return b"".join(found)


@on_all_ranks("shm2", limit_s=60)
def test_one_bit_adam_ends_its_warm_up_when_the_variance_has_settled():
    from harness.jax_door import hvd, jax, jnp

    optimizer = hvd.OneBitAdam(0.1, b2=0.8, lr_warmup_steps=12, scope="all", min_bytes=0)
    update = jax.jit(optimizer.update)
    steady = falling = optimizer.init(jnp.zeros(64))
    for step in range(40):
        _, steady = update(jnp.ones(64), steady)
        # The variance's norm falls until the larger gradients of the first steps hardly count.
        _, falling = update(jnp.ones(64) * (1 if step > 3 else 2), falling)
        assert step > 16 or int(falling.frozen_at) == 0
    assert int(steady.frozen_at) == 12
    assert int(falling.frozen_at) in range(17, 40)
    return bits((steady.mean, falling.mean))
