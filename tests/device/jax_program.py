# SPDX-License-Identifier: Apache-2.0
"""Program of each rank of test_jax_cuda.py, on the one device that ranks share. Every check raises when it fails."""

import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import horovod.jax as hvd  # before JAX's backends start

import jax  # isort: skip
import jax.numpy as jnp  # isort: skip
import numpy as np
import optax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_default_matmul_precision", "highest")
hvd.init()
SIZE, RANK = hvd.size(), hvd.rank()
DEVICE = jax.devices()[0]
DTYPES = (
    "uint8", "int8", "uint16", "int16", "int32", "int64", "uint32", "uint64", "bool", "float16", "bfloat16", "float32",
    "float64", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip


def values(dtype: str, of_rank: int) -> Any:
    """Return values whose sums and products are exact in every type."""
    most = 2 if dtype == "bool" else 3
    dice = np.random.default_rng([of_rank, DTYPES.index(dtype)])
    return dice.integers(0, most, (2 * SIZE, 5)).astype(jnp.dtype(dtype))


def reduced(ufunc: Any) -> Callable[[list[Any]], Any]:
    def reduce(arrays: list[Any]) -> Any:
        if arrays[0].dtype == np.bool_:
            stacked = np.stack(arrays)
            return stacked.any(0) if ufunc in (np.add, np.maximum) else stacked.all(0)
        return ufunc.reduce([one.astype(np.float64) for one in arrays])

    return reduce


def averaged(arrays: list[Any]) -> Any:
    mean = reduced(np.add)(arrays) / SIZE
    return mean if jnp.issubdtype(arrays[0].dtype, jnp.floating) else np.trunc(mean)


def my_part(whole: Any) -> Any:
    return np.split(whole, SIZE)[RANK]


OPERATIONS: dict[str, tuple[Callable[[Any], Any], Callable[[list[Any]], Any]]] = {
    "sum": (lambda it: hvd.allreduce(it, op=hvd.Sum), reduced(np.add)),
    "average": (hvd.allreduce, averaged),
    "min": (lambda it: hvd.allreduce(it, op=hvd.Min), reduced(np.minimum)),
    "max": (lambda it: hvd.allreduce(it, op=hvd.Max), reduced(np.maximum)),
    "product": (lambda it: hvd.allreduce(it, op=hvd.Product), reduced(np.multiply)),
    "broadcast": (lambda it: hvd.broadcast(it, SIZE - 1), lambda arrays: arrays[SIZE - 1]),
    "reducescatter": (
        lambda it: hvd.grouped_reducescatter(it, op=hvd.Sum),
        lambda arrays: my_part(reduced(np.add)(arrays)),
    ),
    "allgather": (hvd.grouped_allgather, np.concatenate),
    "alltoall": (
        lambda it: [hvd.alltoall(one) for one in it],
        lambda arrays: np.concatenate([my_part(one) for one in arrays]),
    ),
}


def same(results: Any, wanted: Any, what: object) -> None:
    assert results.devices() == {DEVICE}, (what, results.devices())
    np.testing.assert_array_equal(np.asarray(results).astype(np.float64), np.asarray(wanted, np.float64), str(what))


def check_operations() -> None:
    """Check every operation on every type, one at a time and all of them in one program."""
    chosen = {name: [it for it in DTYPES if it != "bool" or name != "average"] for name in OPERATIONS}
    mine = {name: [jnp.asarray(values(dtype, RANK)) for dtype in dtypes] for name, dtypes in chosen.items()}
    eager = {name: operation(mine[name]) for name, (operation, _) in OPERATIONS.items()}
    together = jax.jit(lambda trees: {name: operation(trees[name]) for name, (operation, _) in OPERATIONS.items()})(
        mine
    )
    for name, (_, reference) in OPERATIONS.items():
        for index, dtype in enumerate(chosen[name]):
            wanted = reference([values(dtype, of_rank) for of_rank in range(SIZE)])
            for way, results in (("eager", eager), ("jit", together)):
                result = results[name][index]
                assert str(result.dtype) == dtype, (way, name, dtype, result.dtype)
                same(result, wanted, (way, name, dtype))


def check_forms() -> None:
    """Check large arrays, empty ones, factors, compression, different numbers of rows, and handles."""
    large = jnp.full((3 << 20,), RANK + 1.0, jnp.float32)
    same(jax.jit(lambda it: hvd.allreduce(it, op=hvd.Sum))(large), np.full(large.shape, SIZE * (SIZE + 1) / 2), "large")
    scaled = jax.jit(lambda it: hvd.allreduce(it, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0))
    same(scaled(large[:7]), np.full(7, SIZE * (SIZE + 1.0)), "scaled")
    same(jax.jit(hvd.allreduce)(jnp.zeros((0, 3))), np.zeros((0, 3)), "empty")
    for way in (hvd.allreduce, jax.jit(hvd.allreduce, static_argnames="compression")):
        short = way({"a": large[:100]}, compression=hvd.Compression.bf16)["a"]
        assert short.dtype == jnp.float32
        same(short, np.full(100, (SIZE + 1) / 2), "compressed")
    same(
        hvd.allgather(jnp.full((RANK, 2), RANK)),
        np.repeat(np.arange(SIZE), np.arange(SIZE))[:, None].repeat(2, 1),
        "rows",
    )
    same(hvd.synchronize(hvd.allreduce_async(large[:9], op=hvd.Max)), np.full(9, SIZE), "handle")
    with pytest.raises(hvd.HorovodMismatchError, match="Mismatched ALLREDUCE tensor shapes"):
        hvd.allreduce(jnp.ones(3 + RANK), name="different")
    with pytest.raises(hvd.HorovodMismatchError, match="Mismatched"), hvd.translated_errors():
        jax.block_until_ready(jax.jit(lambda it: hvd.allreduce(it, name="different"))(jnp.ones(3 + RANK)))
    same(hvd.allreduce(jnp.ones(3), name="different"), np.ones(3), "after a mismatch")


def check_in_flight() -> None:
    """Donate or delete arrays on rank 0 while an operation on them is in flight, before the other ranks take part."""
    overwrite = jax.jit(lambda it: it * 0 - 1, donate_argnums=0)
    count = 1 << 20
    total = sum(np.arange(count) % 1000 + of_rank for of_rank in range(SIZE))
    splits = [count // SIZE] * (SIZE - 1) + [count - count // SIZE * (SIZE - 1)]
    part = slice(sum(splits[:RANK]), sum(splits[: RANK + 1]))
    parts = np.concatenate([(np.arange(count) % 1000 + of_rank)[part] for of_rank in range(SIZE)])
    starts: dict[str, tuple[Callable[[Any], int], Any]] = {
        "allreduce": (lambda it: hvd.allreduce_async([it], op=hvd.Sum, name="in flight"), total),
        "alltoall": (lambda it: hvd.alltoall_async(it, name="in flight", splits=splits), parts),
    }
    for lose in (overwrite, lambda it: it.delete()):
        for name, (start, wanted) in starts.items():
            mine = jnp.asarray((np.arange(count) % 1000 + RANK).astype(np.float32))
            handle = 0
            for turn in ("rank 0", "the others"):
                if (RANK == 0) == (turn == "rank 0"):
                    handle = start(mine)
                    lose(mine)
                    jax.block_until_ready([jnp.full(count, -1.0, jnp.float32) for _ in range(8)])
                hvd.allreduce(jnp.zeros(1), name=turn)
            same(hvd.synchronize(handle)[0], wanted, (name, "in flight"))


def check_transformations() -> None:
    x = jnp.arange(4.0) + RANK
    total = sum(np.arange(4.0) + of_rank for of_rank in range(SIZE))
    loss = jax.jit(jax.value_and_grad(lambda it: (hvd.allreduce(it, op=hvd.Sum) ** 2).sum()))
    value, gradient = loss(x)
    same(value, (total**2).sum(), "value")
    same(gradient, 2 * total * SIZE, "gradient of a sum")
    of_broadcast = jax.jit(jax.grad(lambda it: (hvd.broadcast(it, 1) * (RANK + 1)).sum()))(x)
    same(of_broadcast, np.full(4, (SIZE + 1) / 2 if RANK == 1 else 0.0), "gradient of a broadcast")
    of_gather = jax.jit(jax.grad(lambda it: (hvd.allgather(it) * (RANK + 1)).sum()))(x)
    same(of_gather, np.full(4, (SIZE + 1) / 2), "gradient of an allgather")
    rows = jnp.arange(6.0).reshape(3, 2) * (RANK + 1)
    same(jax.jit(jax.vmap(lambda it: hvd.allreduce(it, op=hvd.Max)))(rows), np.arange(6.0).reshape(3, 2) * SIZE, "vmap")

    def step(carry: Any, one: Any) -> Any:
        carry = hvd.allreduce(carry + one, op=hvd.Average)
        return carry, carry.sum()

    last, _ = jax.jit(lambda start: jax.lax.scan(step, start, jnp.arange(6.0)))(x)
    same(last, total / SIZE + 15, "scan")
    inner = jax.jit(lambda it: hvd.allreduce(it, op=hvd.Sum))
    same(jax.jit(lambda it: inner(it) + 10 * inner(it + 1))(x), 11 * total + 10 * SIZE, "one function, twice")
    branch = jax.jit(lambda it, take: jax.lax.cond(take, lambda a: hvd.allreduce(a, op=hvd.Sum), lambda a: a, it))
    same(branch(x, True), total, "cond")
    same(branch(x, False), np.arange(4.0) + RANK, "cond")


def check_order() -> None:
    """Run many independent programs at once, each with work before and after its collective."""

    def work(matrix: Any, scale: Any) -> Any:
        busy = matrix
        for _ in range(4):
            busy = jnp.tanh(busy @ matrix)
        return hvd.allreduce(busy * 0 + scale, op=hvd.Sum) * 2

    first, second = jax.jit(work), jax.jit(lambda matrix, scale: work(matrix, scale) + 1)
    matrix = jnp.ones((1024, 1024), jnp.float32) / 1024
    pending = []
    for turn in range(40):
        scale = jnp.float32(RANK + turn)
        pending.append((turn, (second if turn % 3 else first)(matrix, scale)))
    ranks = sum(range(SIZE))
    for turn, result in pending:
        wanted = 2 * (ranks + SIZE * turn) + (1 if turn % 3 else 0)
        same(result[0, :3], np.full(3, wanted), ("order", turn))
        same(result[-1, -3:], np.full(3, wanted), ("order", turn))


def check_sets() -> None:
    sets = [hvd.add_process_set([one]) for one in range(SIZE)]
    both = jax.jit(lambda it: hvd.allreduce(hvd.allreduce(it, op=hvd.Sum, process_set=sets[RANK]) * 2, op=hvd.Sum))
    same(both(jnp.full(5, RANK + 1.0)), np.full(5, SIZE * (SIZE + 1.0)), "sets")
    same(hvd.allreduce(jnp.full(5, RANK + 1.0), process_set=sets[RANK]), np.full(5, RANK + 1.0), "alone")
    for one in sets:
        assert hvd.remove_process_set(one)


def check_training() -> None:
    """Check that ranks with a part of the batch each reach the weights of one process with the whole batch."""
    key = jax.random.key(3)
    first, second, data = jax.random.split(key, 3)
    start = {
        "in": jax.random.normal(first, (16, 64), jnp.float32) / 4,
        "out": jax.random.normal(second, (64, 1), jnp.float32) / 8,
    }
    x = jax.random.normal(data, (8 * SIZE, 16), jnp.float32)
    y = x.sum(1, keepdims=True)

    def loss(params: Any, x: Any, y: Any) -> Any:
        return ((jnp.tanh(x @ params["in"]) @ params["out"] - y) ** 2).mean()

    def train(optimizer: Any, params: Any, x: Any, y: Any) -> Any:
        @jax.jit
        def step(params: Any, state: Any) -> Any:
            updates, state = optimizer.update(jax.grad(loss)(params, x, y), state, params)
            return optax.apply_updates(params, updates), state

        state = optimizer.init(params)
        for _ in range(10):
            params, state = step(params, state)
        return params

    alone = train(optax.adam(1e-2), start, x, y)
    mine = slice(8 * RANK, 8 * (RANK + 1))
    params = hvd.broadcast_parameters(start if RANK == 0 else jax.tree.map(jnp.zeros_like, start), 0)
    together = train(hvd.DistributedOptimizer(optax.adam(1e-2)), params, x[mine], y[mine])
    for name, wanted in alone.items():
        np.testing.assert_allclose(together[name], wanted, rtol=2e-3, atol=2e-5, err_msg=name)
    assert float(loss(together, x, y)) < 0.9 * float(loss(start, x, y))
    digests = hvd.allgather_object([hashlib.sha256(np.asarray(one).tobytes()).hexdigest() for one in together.values()])
    assert digests == digests[:1] * SIZE, digests


def check_state() -> None:
    """Check that a commit of arrays stays on the device, and stays valid when the arrays change."""
    state = hvd.elastic.JaxState(params={"w": jnp.full(4, float(RANK))}, step=RANK)
    state.sync()
    same(state.params["w"], np.zeros(4), "synchronised")
    state.params = {"w": hvd.allreduce(state.params["w"] + 3.0, op=hvd.Max)}
    state.commit()
    state.params = {"w": state.params["w"] * 0}
    state.restore()
    same(state.params["w"], np.full(4, 3.0), "restored")
    assert state.step == 0


CHECKS = {
    "operations": check_operations,
    "forms": check_forms,
    "in_flight": check_in_flight,
    "transformations": check_transformations,
    "order": check_order,
    "sets": check_sets,
    "training": check_training,
    "state": check_state,
}


def run_checks(names: str) -> None:
    for name in names.split(","):
        began = time.monotonic()
        CHECKS[name]()
        print(f"{name} took {time.monotonic() - began:.1f} s", flush=True)
    hvd.shutdown()
    print(f"all checks passed on {DEVICE.platform}", flush=True)


def run_killed() -> None:
    """Kill rank 1 between two steps, while the others run a program or are about to."""
    step = jax.jit(lambda it: hvd.allreduce(it, op=hvd.Average) + 1)
    x = jax.block_until_ready(step(jnp.zeros(1 << 20)))
    hvd.barrier()  # all ranks have finished the first step
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)

    def train(x: Any) -> None:
        for _ in range(100):
            x = jax.block_until_ready(step(x))

    began = time.monotonic()
    with pytest.raises(hvd.HorovodInternalError) as raised, hvd.translated_errors():
        train(x)
    took = time.monotonic() - began
    hvd.shutdown()
    assert jnp.arange(5.0).sum() == 10  # the device still works
    print(f"lost rank {raised.value.lost_rank} after {took:.1f} s on {DEVICE.platform}: {raised.value}", flush=True)


if __name__ == "__main__":
    {"checks": run_checks, "killed": run_killed}[sys.argv[1]](*sys.argv[2:])
