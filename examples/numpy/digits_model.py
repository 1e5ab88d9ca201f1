# SPDX-License-Identifier: Apache-2.0
"""A network with one hidden layer and hand-written gradients. It does not use Horovod."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Network:
    """Network that computes images → ReLU(images · w1 + b1) → softmax(hidden · w2 + b2)."""

    def __init__(self, inputs: int, hidden: int, classes: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.parameters: list[Array] = [
            (random.standard_normal((inputs, hidden)) * np.sqrt(2 / inputs)).astype(np.float32),
            np.zeros(hidden, np.float32),
            (random.standard_normal((hidden, classes)) * np.sqrt(1 / hidden)).astype(np.float32),
            np.zeros(classes, np.float32),
        ]
        self._velocities = [np.zeros_like(parameter) for parameter in self.parameters]

    def _forward(self, images: Array) -> tuple[Array, Array]:
        w1, b1, w2, b2 = self.parameters
        hidden = np.maximum(images @ w1 + b1, 0)
        scores = hidden @ w2 + b2
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return hidden, scores / scores.sum(axis=1, keepdims=True)

    def predict(self, images: Array) -> Array:
        prediction: Array = self._forward(images)[1].argmax(axis=1)
        return prediction

    def loss_and_gradients(self, images: Array, labels: Array) -> tuple[float, list[Array]]:
        """Return the mean cross-entropy of a batch, and its gradients in the order of `parameters`."""
        hidden, probabilities = self._forward(images)
        rows = np.arange(len(labels))
        loss = float(-np.log(probabilities[rows, labels] + 1e-12).mean())
        error = probabilities
        error[rows, labels] -= 1
        error /= np.float32(len(labels))
        back = (error @ self.parameters[2].T) * (hidden > 0)
        return loss, [images.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)]

    def descend(self, gradients: list[Array], learning_rate: float, momentum: float) -> None:
        for parameter, velocity, gradient in zip(self.parameters, self._velocities, gradients, strict=True):
            velocity *= np.float32(momentum)
            velocity += gradient
            parameter -= np.float32(learning_rate) * velocity
