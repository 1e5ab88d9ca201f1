# SPDX-License-Identifier: Apache-2.0
"""Where can gradients be averaged? Linear regression on one shard for each rank, with and without momentum.

Averaging in a backward hook, or in a wrapped optimizer before its update, gives equal weights, bit for bit. After the
momentum update, averaging lets the ranks drift apart. Run it with:  horovodrun -np 4 python two_placements.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable

try:
    import numpy as np
    import numpy.typing as npt

    import horovod.numpy as hvd
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install khorovod") from None

Array = npt.NDArray[np.float32]
FEATURES, ROWS, STEPS, LEARNING_RATE = 16, 128, 200, 0.02


class Parameter:
    """Parameter with its gradient, and hooks that run as soon as a backward pass has made the gradient."""

    def __init__(self, name: str, value: Array) -> None:
        self.name = name
        self.value = value
        self.grad = np.zeros_like(value)
        self.hooks: list[Callable[[Parameter], None]] = []


class LinearRegression:
    """Linear model x·weight + bias with the mean squared error and its gradient."""

    def __init__(self) -> None:
        self.weight = Parameter("weight", np.zeros(FEATURES, np.float32))
        self.bias = Parameter("bias", np.zeros(1, np.float32))
        self.parameters = [self.weight, self.bias]

    def loss(self, x: Array, y: Array) -> float:
        return float(np.mean((x @ self.weight.value + self.bias.value - y) ** 2))

    def backward(self, x: Array, y: Array) -> None:
        error = 2 * (x @ self.weight.value + self.bias.value - y) / np.float32(len(y))
        # A backward pass makes the last layer's gradients first.
        for parameter, grad in ((self.bias, error.sum(keepdims=True)), (self.weight, x.T @ error)):
            parameter.grad = np.ascontiguousarray(grad)
            for hook in parameter.hooks:
                hook(parameter)


class MomentumSGD:
    """Optimizer: velocity = momentum · velocity + gradient; value -= learning rate · velocity."""

    def __init__(self, parameters: list[Parameter], momentum: float) -> None:
        self.parameters = parameters
        self.momentum = np.float32(momentum)
        self.velocities = [np.zeros_like(parameter.value) for parameter in parameters]

    def update_velocities(self) -> None:
        for parameter, velocity in zip(self.parameters, self.velocities, strict=True):
            velocity *= self.momentum
            velocity += parameter.grad

    def apply_velocities(self) -> None:
        for parameter, velocity in zip(self.parameters, self.velocities, strict=True):
            parameter.value -= np.float32(LEARNING_RATE) * velocity

    def step(self) -> None:
        self.update_velocities()
        self.apply_velocities()


class AveragingOptimizer(MomentumSGD):
    """Correct: averages the gradients, then makes the usual step."""

    def step(self) -> None:
        average_gradients(self.parameters)
        super().step()


class LateOptimizer(MomentumSGD):
    """Wrong: the velocity has already used the local gradient when the average arrives."""

    def step(self) -> None:
        self.update_velocities()
        average_gradients(self.parameters)
        self.apply_velocities()


class VelocityAveragingOptimizer(MomentumSGD):
    """Correct only up to rounding, because momentum is linear; wrong once gradients are clipped."""

    def step(self) -> None:
        self.update_velocities()
        for parameter, velocity in zip(self.parameters, self.velocities, strict=True):
            hvd.allreduce_(velocity, name=f"velocity.{parameter.name}")
        self.apply_velocities()


def average_gradients(parameters: list[Parameter]) -> None:
    for parameter in parameters:
        hvd.allreduce_(parameter.grad, name=f"gradient.{parameter.name}")


def train(optimizer_class: type[MomentumSGD], momentum: float, in_hook: bool, x: Array, y: Array) -> LinearRegression:
    model = LinearRegression()
    handles: list[int] = []
    if in_hook:
        for parameter in model.parameters:
            # The allreduce runs while the rest of the backward pass computes.
            parameter.hooks.append(lambda it: handles.append(hvd.allreduce_async_(it.grad, name=f"hook.{it.name}")))
    optimizer = optimizer_class(model.parameters, momentum)
    for _ in range(STEPS):
        model.backward(x, y)
        while handles:
            hvd.synchronize(handles.pop())
        optimizer.step()
    return model


def make_shard(rank: int) -> tuple[Array, Array]:
    """Return data with inputs and a truth that differ between ranks, so that local gradients differ too."""
    random = np.random.default_rng(rank)
    truth = np.linspace(-1, 1, FEATURES) + 0.5 * random.standard_normal(FEATURES)
    x = random.standard_normal((ROWS, FEATURES)).astype(np.float32)
    return x, (x @ truth + 0.3 + 0.1 * random.standard_normal(ROWS)).astype(np.float32)


def weights_of(model: LinearRegression) -> Array:
    return np.concatenate([parameter.value for parameter in model.parameters])


def spread(weights: Array) -> float:
    """Return the largest difference of any weight between two ranks."""
    everyone = hvd.allgather(weights[np.newaxis], name="weights")
    return float(np.max(everyone.max(axis=0) - everyone.min(axis=0)))


def compare(momentum: float, x: Array, y: Array) -> list[str]:
    """Print one table. Return the claims that did not hold."""
    placements = {
        "in a backward hook": train(MomentumSGD, momentum, True, x, y),
        "in a wrapped optimizer": train(AveragingOptimizer, momentum, False, x, y),
        "velocity, after its update": train(VelocityAveragingOptimizer, momentum, False, x, y),
        "after the momentum update": train(LateOptimizer, momentum, False, x, y),
    }
    reference = weights_of(placements["in a backward hook"])
    if hvd.rank() == 0:
        print(f"\nmomentum {momentum}, {hvd.size()} ranks, {STEPS} steps")
        print(f"{'averaged':<28}{'loss on all shards':>20}{'away from hook':>16}{'between ranks':>15}  same bits")
    shards = [make_shard(rank) for rank in range(hvd.size())]
    losses, differences, spreads, same = {}, {}, {}, {}
    for name, model in placements.items():
        weights = weights_of(model)
        own_loss = np.mean([model.loss(*shard) for shard in shards])
        losses[name] = float(hvd.allreduce(own_loss, name="loss"))
        differences[name] = float(np.max(np.abs(weights - reference)))
        spreads[name] = spread(weights)
        same[name] = weights.tobytes() == reference.tobytes()
        if hvd.rank() == 0:
            print(
                f"{name:<28}{losses[name]:>20.6f}{differences[name]:>16.2e}{spreads[name]:>15.2e}"
                f"  {'yes' if same[name] else 'no'}"
            )
    claims = {
        "hook and optimizer give the same bits": same["in a wrapped optimizer"],
        "all ranks hold the same weights": spreads["in a backward hook"] == spreads["in a wrapped optimizer"] == 0,
        "averaged velocities agree up to rounding": differences["velocity, after its update"] < 1e-4,
        "averaging too late makes ranks drift apart": spreads["after the momentum update"] > 1e-2,
        "and learn less": losses["after the momentum update"] > 1.1 * losses["in a backward hook"],
    }
    return [f"momentum {momentum}: {claim}" for claim, holds in claims.items() if not holds]


def main() -> int:
    hvd.init()
    if hvd.size() == 1:
        print("One rank has nobody to average with. Try:  horovodrun -np 4 python two_placements.py", file=sys.stderr)
        return 2
    x, y = make_shard(hvd.rank())
    failed = compare(0.0, x, y) + compare(0.9, x, y)
    for claim in failed:
        print(f"rank {hvd.rank()}: this claim does not hold: {claim}", file=sys.stderr)
    if hvd.rank() == 0 and not failed:
        print(
            "\nAverage before the optimizer's state sees the gradient: in a hook or in step(), the bits are the same."
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
