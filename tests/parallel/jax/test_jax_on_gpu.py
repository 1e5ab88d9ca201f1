# SPDX-License-Identifier: Apache-2.0
"""horovod.jax with arrays of a GPU, as far as a machine without one can test it: the CPU stands in for the GPU.

tests/device/test_xla_standin.py tests the handler for GPUs, and tests/device/test_jax_cuda.py runs on a GPU.
"""

import contextlib

import pytest
from harness.worlds import on_all_ranks


@on_all_ranks("shm2")
def test_programs_for_a_gpu_call_the_same_handler_by_name():
    from harness.jax_door import hvd, jax, jnp
    from jax import export

    from horovod.common import xla_library

    known = [export.DisabledSafetyCheck.custom_call(xla_library.TARGET)]
    function = jax.jit(jax.value_and_grad(lambda x: (hvd.allreduce(hvd.broadcast(x, 0), name="it") ** 2).sum()))
    text = export.export(function, platforms=["cuda"], disabled_checks=known)(jnp.ones(3)).mlir_module()
    for name in ("broadcast", "allreduce.it", "allreduce.it.gradient"):
        assert f'name = "{name}' in text, text
    assert text.count(f"@{xla_library.TARGET}(") == 4, text
    with pytest.raises(NotImplementedError, match="works on the CPU and on NVIDIA's GPUs"):
        export.export(function, platforms=["rocm"], disabled_checks=known)(jnp.ones(3))


@contextlib.contextmanager
def the_cpu_taken_for_a_gpu():
    from harness.jax_door import jax

    from horovod.jax import on_gpu

    (device,) = jax.devices()
    with pytest.MonkeyPatch.context() as patch:  # undone at the end, because the ranks serve further tests
        patch.setattr(on_gpu, "gpu_of", lambda arrays: device)
        yield device


@on_all_ranks("shm2")
def test_outside_jit_arrays_of_a_gpu_take_part():
    with the_cpu_taken_for_a_gpu() as device:
        _check_arrays_of(device)


def _check_arrays_of(taken_for_gpu):
    from harness.jax_door import hvd, jax, jnp, np

    from horovod.jax import on_gpu

    me, programs = hvd.rank(), on_gpu.eager._cache_size()
    mine = jnp.full((2, 3), me + 1.0, jnp.float32)

    tree = hvd.allreduce({"a": mine, "b": mine.astype(jnp.bfloat16), "c": 2 * me}, op=hvd.Sum)
    assert {name: str(leaf.dtype) for name, leaf in tree.items()} == {"a": "float32", "b": "bfloat16", "c": "int64"}
    for leaf, wanted in zip(tree.values(), (3, 3, 2), strict=True):
        np.testing.assert_array_equal(np.asarray(leaf, np.float32), np.full(leaf.shape, wanted))
    np.testing.assert_array_equal(hvd.broadcast(mine, 1), np.full((2, 3), 2))
    np.testing.assert_array_equal(hvd.reducescatter(mine, op=hvd.Sum), np.full((1, 3), 3))
    assert on_gpu.eager._cache_size() == programs + 3
    for _ in range(2):
        small = hvd.allreduce(mine / 3, compression=hvd.Compression.fp16, op=hvd.Sum)
        assert small.dtype == jnp.float32
        np.testing.assert_allclose(small, np.full((2, 3), 1), rtol=1e-3)
    assert on_gpu.eager._cache_size() == programs + 4

    rows = hvd.allgather(mine[: me + 1])
    np.testing.assert_array_equal(rows, [[1] * 3, [2] * 3, [2] * 3])
    halves = jnp.arange(3, dtype=jnp.bfloat16)
    parts = hvd.alltoall(halves, splits=[1, 2])
    np.testing.assert_array_equal(np.asarray(parts[0], np.float32), [0, 0] if me == 0 else [1, 2, 1, 2])
    handle = hvd.allreduce_async([mine, halves], op=hvd.Sum)
    first, second = hvd.synchronize(handle)
    np.testing.assert_array_equal(first, np.full((2, 3), 3))
    np.testing.assert_array_equal(np.asarray(second, np.float32), [0, 2, 4])
    assert {leaf.devices().pop() for leaf in (rows, parts[0], first, second)} == {taken_for_gpu}
    # These calls went through host memory, so none compiled a program.
    assert on_gpu.eager._cache_size() == programs + 4

    gradient = jax.grad(lambda x: (hvd.broadcast(x, 1) * (me + 1)).sum())(mine)
    np.testing.assert_array_equal(gradient, np.full((2, 3), 1.5 if me == 1 else 0))


@on_all_ranks("shm2")
def test_outside_jit_errors_on_a_gpu_are_raised_by_the_call():
    from harness.jax_door import hvd, jnp, np

    with the_cpu_taken_for_a_gpu():
        with pytest.raises(hvd.HorovodMismatchError, match="Mismatched ALLREDUCE tensor shapes"):
            hvd.allreduce(jnp.ones(3 + hvd.rank()), name="different")
        np.testing.assert_array_equal(hvd.allreduce(jnp.ones(3), name="different"), np.ones(3))
