# SPDX-License-Identifier: Apache-2.0
"""Algorithms of the DDP hooks, simulated for all ranks in one process with NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from harness import compression_reference as formats
from horovod.common.compression_methods import PowerSGD
from horovod.torch.codecs.low_rank import Factors

Array = Any
Shapes = tuple[tuple[int, ...], ...]


class Reference:
    """Averages of one bucket, step by step, with compression by a subclass."""

    def __init__(self, size: int, index: int, shapes: Shapes, *, feedback: bool) -> None:
        self.size, self.index, self.shapes, self.feedback = size, index, shapes, feedback
        self.count = sum(math.prod(shape) for shape in shapes)
        self.residuals = [np.zeros(self.count, np.float32) for _ in range(size)]

    def corrected(self, gradients: Sequence[Array]) -> list[Array]:
        return [gradient + residual for gradient, residual in zip(gradients, self.residuals, strict=True)]

    def mean(self, parts: Sequence[Array]) -> Array:
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total * np.float32(1 / self.size)

    def average(self, gradients: Sequence[Array], step: int) -> Array:
        raise NotImplementedError


class Int8Reference(Reference):
    block = 16

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.share = math.ceil(self.count / (self.size * self.block)) * self.block
        self.owned = [np.zeros(self.share, np.float32) for _ in range(self.size)]

    def coded(self, p: Array) -> Array:
        return formats.int8_decode(formats.int8_encode(p, self.block), len(p), self.block)

    def average(self, gradients: Sequence[Array], step: int) -> Array:
        corrected = self.corrected(gradients)
        sent = [self.coded(np.pad(p, (0, self.size * self.share - self.count))) for p in corrected]
        result = []
        for owner in range(self.size):
            share = slice(owner * self.share, (owner + 1) * self.share)
            p = self.mean([each[share] for each in sent]) + self.owned[owner]
            result.append(self.coded(p))
            if self.feedback:
                self.owned[owner] = p - result[-1]
        if self.feedback:
            self.residuals = [p - each[: self.count] for p, each in zip(corrected, sent, strict=True)]
        return np.concatenate(result)[: self.count]


class TopKReference(Reference):
    ratio = 0.1

    def average(self, gradients: Sequence[Array], step: int) -> Array:
        corrected = self.corrected(gradients)
        sent = [formats.topk_decode(formats.topk_encode(p, self.ratio), self.count) for p in corrected]
        if self.feedback:
            self.residuals = [p - each for p, each in zip(corrected, sent, strict=True)]
        return self.mean(sent)


class PowerReference(Reference):
    method = PowerSGD(rank=2, start_after=3, min_rate=0.5)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.factors = Factors(self.shapes, self.method)
        first = self.factors.first_q(self.method.seed + self.index, torch.device("cpu")).numpy().astype(np.float64)
        lengths = [it.columns * it.rank for it in self.factors.matrices]
        parts = np.split(first, np.cumsum(lengths)[:-1])
        self.q = [part.reshape(-1, it.rank) for part, it in zip(parts, self.factors.matrices, strict=False)]

    def average(self, gradients: Sequence[Array], step: int) -> Array:
        if step < self.method.start_after:
            return self.mean(gradients)
        corrected = self.corrected(gradients)
        result = np.mean(corrected, axis=0, dtype=np.float64)
        for number, it in enumerate(self.factors.matrices):
            place = slice(it.offset, it.offset + it.rows * it.columns)
            matrices = [p[place].reshape(it.rows, it.columns).astype(np.float64) for p in corrected]
            p = np.linalg.qr(np.mean([matrix @ self.q[number] for matrix in matrices], axis=0))[0]
            self.q[number] = np.mean([matrix.T @ p for matrix in matrices], axis=0)
            result[place] = (p @ self.q[number].T).ravel()
            if self.feedback:
                for residual, matrix in zip(self.residuals, matrices, strict=True):
                    residual[place] = matrix.ravel() - result[place]
        return result.astype(np.float32)


REFERENCES = {"int8": Int8Reference, "topk": TopKReference, "powersgd": PowerReference}
