# SPDX-License-Identifier: Apache-2.0
"""Compressed gradients with Keras: the methods of each backend in fit and in a loop, and the refusal of the others."""

import numpy as np
import pytest
from harness.keras_worlds import ALL, ON_TORCH
from harness.worlds import on_all_ranks

START_S = 200  # seconds; the first test of a world imports its frameworks on all ranks at once
SHAPE = (160, 130)
METHODS = {"tensorflow": ["int8", "powersgd"], "torch": ["int8", "onebit", "topk", "powersgd"], "jax": []}
ARGUMENTS = {
    "topk": {"ratio": 0.05},
    "dgc": {"ratio": 0.05, "momentum": 0.9},
    "powersgd": {"rank": 40, "start_after": 0},
}


def gradient(rank, step):
    return np.random.default_rng(100 * step + rank).standard_normal(SHAPE).astype(np.float32)


@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_the_methods_of_the_backend():
    """The sum of all steps equals that of dense steps up to the loss of one step; without feedback it does not."""
    from harness import keras_door as door

    hvd = door.hvd
    steps = 6
    dense = -np.sum([np.mean([gradient(rank, step % 2) for rank in range(2)], 0) for step in range(steps)], 0)
    for kind in METHODS[door.BACKEND]:
        errors = []
        for feedback in (True, False):
            options = {"scope": "all", "error_feedback": feedback, **ARGUMENTS.get(kind, {})}
            variable = door.variable(np.zeros(SHAPE))
            made = getattr(hvd.Compression, kind)(**options)
            optimizer = hvd.DistributedOptimizer(door.keras.optimizers.SGD(1.0), compression=made)
            for step in range(steps):
                optimizer.apply_gradients([(door.gradient(gradient(hvd.rank(), step % 2)), variable)])
            found = np.asarray(variable)
            door.same_everywhere([found])
            errors.append(np.linalg.norm(found - dense))
        assert errors[0] < 0.8 * errors[1], (kind, errors)


@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_fit_and_what_the_backend_does_not_have():
    from harness import keras_door as door

    hvd, keras = door.hvd, door.keras
    if METHODS[door.BACKEND]:
        method = hvd.Compression.int8(scope="all", min_bytes=0)
        for passes in (1, 2):
            optimizer = hvd.DistributedOptimizer(
                keras.optimizers.SGD(0.1), compression=method, backward_passes_per_step=passes,
                average_aggregated_gradients=True,
            )  # fmt: skip
            together = door.trained_together(optimizer, passes)
            door.same_everywhere(together)
            door.check_same(together, door.trained_alone(keras.optimizers.SGD(0.1)), rtol=0, atol=0.02)
    for kind in ("int8", "onebit", "topk", "powersgd", "dgc"):
        if kind not in [*METHODS[door.BACKEND], *(["dgc"] if door.BACKEND == "torch" else [])] and hasattr(
            hvd.Compression, kind
        ):
            method = getattr(hvd.Compression, kind)(**ARGUMENTS.get(kind, {}))
            with pytest.raises(
                ValueError, match=rf"DistributedOptimizer of Keras .*does not support compression={kind}\("
            ):
                hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), compression=method)


@pytest.mark.skipif(not ON_TORCH, reason="Keras 2 has no backend of PyTorch")
@on_all_ranks(*ON_TORCH, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
@pytest.mark.parametrize("kind", ["powersgd", "dgc"])
def test_values_on_torch_are_those_of_one_process(kind):
    """The kernel of a convolution is a matrix whose columns are the outputs."""
    from harness import keras_door as door
    from harness.stateful_exchange import DgcSimulation, PowerSimulation

    hvd, shape = door.hvd, (4, 40, 130)
    if kind == "dgc":
        method = hvd.Compression.dgc(0.05, 0.9, ramp=(), scope="all")
        simulated = DgcSimulation(range(2), method)
        as_simulated = (-1,)
    else:
        method = hvd.Compression.powersgd(3, 1, scope="all")
        as_simulated = SHAPE
        simulated = PowerSimulation(range(2), SHAPE, method)
    variable, expected = door.variable(np.zeros(shape)), np.zeros(shape)
    optimizer = hvd.DistributedOptimizer(door.keras.optimizers.SGD(1.0), compression=method)
    for step in range(4):
        gradients = [gradient(rank, step) for rank in range(2)]
        optimizer.apply_gradients([(door.gradient(gradients[hvd.rank()].reshape(shape)), variable)])
        expected -= simulated.step([it.reshape(as_simulated) for it in gradients]).reshape(shape)
        found = door.keras.ops.convert_to_numpy(variable)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    door.same_everywhere([found])


@pytest.mark.skipif(not ON_TORCH, reason="Keras 2 has no backend of PyTorch")
@on_all_ranks(*ON_TORCH, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_dgc_is_the_momentum_even_of_one_rank_and_refuses_an_optimizer_with_its_own():
    from harness import keras_door as door

    alone = door.hvd.add_process_set([0])
    method = door.hvd.Compression.dgc(0.05, 0.9)
    optimizer = door.hvd.DistributedOptimizer(door.keras.optimizers.SGD(1.0), compression=method, process_set=alone)
    variable = door.variable(np.zeros(SHAPE))
    for step in range(2):
        optimizer.apply_gradients([(door.gradient(gradient(0, step)), variable)])
    velocities = gradient(0, 0) * (1.9 if door.hvd.rank() == 0 else 1.0) + gradient(0, 1)  # only rank 0 is in the set
    np.testing.assert_allclose(door.keras.ops.convert_to_numpy(variable), -velocities, rtol=1e-4, atol=1e-5)
    door.hvd.remove_process_set(alone)
    with pytest.raises(ValueError, match=r"compression=dgc\(.* accumulates the momentum itself: give SGD momentum=0"):
        door.hvd.DistributedOptimizer(
            door.keras.optimizers.SGD(0.1, momentum=0.9), compression=door.hvd.Compression.dgc(0.05, 0.9)
        )
