# SPDX-License-Identifier: Apache-2.0
"""Compiled programs in several worlds, errors inside jit, and programs with many collectives on few threads."""

import json
import os
import signal
import sys

import pytest
from harness.worlds import DYNAMIC, World, in_worlds, on_all_ranks
from testkit.launcher import horovodrun, python
from testkit.preloaded import ANEW
from testkit.processes import run

from horovod.common.exceptions import HorovodNotInitializedError

MANY = 50


@on_all_ranks("shm2")
def test_a_traced_function_survives_a_new_init():
    from harness.jax_door import hvd, jax, np

    me = hvd.rank()
    step = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum) + hvd.allgather(x).sum())
    one = hvd.add_process_set([1])
    alone = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=one))
    np.testing.assert_array_equal(step(np.full(2, float(me))), [3.0] * 2)
    if me == 1:
        np.testing.assert_array_equal(alone(np.ones(2)), [1.0] * 2)
    hvd.shutdown()
    with pytest.raises(HorovodNotInitializedError, match="not initialized"), hvd.translated_errors():
        step(np.ones(2))
    hvd.init()
    np.testing.assert_array_equal(step(np.full(2, float(me))), [3.0] * 2)
    assert step._cache_size() == 1
    if me == 1:
        with pytest.raises(HorovodNotInitializedError, match="process set is not registered"), hvd.translated_errors():
            alone(np.ones(2))
    hvd.add_process_set([0])  # takes the id that the other set had in the engine
    hvd.add_process_set(one)
    if me == 1:
        np.testing.assert_array_equal(alone(np.ones(2)), [1.0] * 2)


@on_all_ranks("shm2")
def test_a_mismatch_inside_jit_reaches_all_ranks_and_nothing_else():
    from harness.jax_door import hvd, jax, jnp, np

    me = hvd.rank()
    rows = jnp.ones((2 + me, 3))
    reduce = jax.jit(lambda x: hvd.allreduce(x, name="different"))
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"Horovod: Mismatched ALLREDUCE tensor shapes.*'allreduce.different'"
    ):
        reduce(rows)
    gather = jax.jit(lambda x: hvd.allgather(x, name="ragged"))
    many_rows = "Inside jit, allgather and alltoall need the same number of rows"
    with pytest.raises(hvd.HorovodMismatchError, match=many_rows), hvd.translated_errors():
        gather(rows)
    tree = jax.jit(lambda t: hvd.allreduce(t, name="group"))
    with pytest.raises(hvd.HorovodMismatchError, match="Mismatched data types"), hvd.translated_errors():
        tree([jnp.ones(2), jnp.ones(2, jnp.float32 if me else jnp.float64)])
    np.testing.assert_array_equal(reduce(jnp.full(3, float(me))), [0.5] * 3)


@on_all_ranks("shm2")
def test_programs_that_share_a_context_are_told_apart():
    """From version 0.11 on, JAX builds several programs in one MLIR context."""
    from types import SimpleNamespace

    from harness.jax_door import jax  # noqa: F401
    from jax.interpreters import mlir

    from horovod.jax.primitive import _program_of, _programs

    context = mlir.make_ir_context()
    with context, mlir.ir.Location.unknown():
        modules = [mlir.ir.Module.create() for _ in range(2)]
    built = [SimpleNamespace(module_context=SimpleNamespace(context=context, module=module)) for module in modules]
    first, second = (_program_of(ctx).number for ctx in built)
    assert first != second
    assert _program_of(built[0]).number == first
    before = len(_programs)
    del built, modules
    assert len(_programs) == before - 2


PROGRAM = """
import json, os, signal, sys, time
import horovod.jax as hvd
import jax, jax.numpy as jnp
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher ends the others at once; this one has a report to write
hvd.init()
step = jax.jit(lambda x: (hvd.allreduce(x), hvd.allreduce(x * 2), hvd.allreduce(x[0] + 1)))
step(jnp.ones(1000))
hvd.barrier()
try:
    with hvd.translated_errors():
        for index in range(1000000):
            if hvd.rank() == 1 and index == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            step(jnp.ones(1000))
except hvd.HorovodInternalError as error:
    again = time.monotonic()
    try:
        with hvd.translated_errors():
            step(jnp.ones(1000))
    except hvd.HorovodInternalError as second:
        report = {"texts": [str(error), str(second)], "lost": [error.lost_rank, second.lost_rank]}
    json.dump({**report, "again_took": time.monotonic() - again}, open(sys.argv[1], "w"))
"""


def test_a_killed_peer_is_named_inside_jit(tmp_path):
    program, result = tmp_path / "program.py", tmp_path / "result"
    program.write_text(PROGRAM)
    done = horovodrun("-np", "2", sys.executable, str(program), str(result), limit_s=58)
    assert done.returncode == 128 + signal.SIGKILL, done.stdout + done.stderr
    report = json.loads(result.read_text())
    assert report["lost"] == [1, 1]
    for text in report["texts"]:
        assert "rank 1 is lost" in text
    assert report["again_took"] < 5


POOLS = {
    "one core": {"TEST_CORES": "1"},
    "no Eigen threads": {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"},
    "one XLA thread": {"NPROC": "1", "OMP_NUM_THREADS": "1"},
}


def _many_collectives():
    if os.environ.get("TEST_CORES"):  # JAX counts the cores when it is imported
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    from harness.jax_door import hvd, jax, jnp, np

    me = hvd.rank()

    @jax.jit
    def program(xs):
        # The allreduces are independent and differ in cost, so XLA starts them in an order that differs between ranks.
        return [hvd.allreduce(jnp.sin(x @ x) * 0 + x, op=hvd.Sum) for x in xs]

    for side in (2, 64):
        xs = [np.full((side, side), float(index + me)) for index in range(MANY)]
        for _ in range(3):
            for index, result in enumerate(program(xs)):
                np.testing.assert_array_equal(result, np.full((side, side), 2.0 * index + 1))
    tree = jax.jit(lambda t: hvd.allreduce(t, op=hvd.Sum))([np.full(index, float(me)) for index in range(MANY)])
    assert all((np.asarray(leaf) == 1).all() for leaf in tree)


@in_worlds(*(World(f"jax {name}", "a:2", DYNAMIC | ANEW | env) for name, env in POOLS.items()))
def test_many_collectives_on_few_threads(world):
    world.run(_many_collectives, limit_s=55)


@in_worlds(World("jax through Python", "a:2", DYNAMIC | {"HOROVOD_JAX_FFI": "0"}))
def test_without_the_handlers_programs_go_through_python(world):
    world.run(_through_python)


def _through_python():
    from harness.jax_door import hvd, jax, jnp, np

    from horovod.jax import handlers

    assert handlers.load() is None
    assert handlers.unavailable() == "HOROVOD_JAX_FFI=0 is set"
    me = hvd.rank()
    results = jax.jit(lambda t: hvd.allreduce(t, op=hvd.Sum))([jnp.full(3, float(me)), jnp.ones(2, jnp.bfloat16)])
    np.testing.assert_array_equal(results[0], [1.0] * 3)
    assert results[1].tolist() == [2.0] * 2
    gradient = jax.jit(jax.grad(lambda x: (hvd.allreduce(x) ** 2).sum()))(jnp.full(3, float(me)))
    np.testing.assert_array_equal(gradient, [1.0] * 3)


LATE = """
import jax, jax.numpy as jnp
jnp.ones(3).block_until_ready()
import horovod.jax as hvd
hvd.init()
assert hvd.allreduce(jnp.ones(3)).sum() == 3
try:
    jax.jit(hvd.allreduce)(jnp.ones(3))
except RuntimeError as error:
    assert "Import horovod.jax before" in str(error), error
else:
    raise AssertionError("not refused")
"""


def test_an_import_that_comes_too_late_is_refused():
    done = run(python(LATE), limit_s=50)
    assert done.returncode == 0, done.stderr
