# SPDX-License-Identifier: Apache-2.0
"""Simulation of PowerSGD and DGC on all ranks in one process with NumPy, to check compression with state against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from harness.compressed_exchange import Codec, _parts, topk
from horovod.common.compression_methods import Dgc, PowerSGD
from horovod.torch.codecs.low_rank import Factors

Array = np.ndarray[Any, np.dtype[Any]]


def ranks_by_host(hosts: Sequence[Any]) -> list[list[int]]:
    return [[rank for rank, it in enumerate(hosts) if it == host] for host in dict.fromkeys(hosts)]


class PowerSimulation:
    """PowerSGD of one matrix on all hosts; each host has the residual of its sum."""

    def __init__(self, hosts: Sequence[Any], shape: tuple[int, int], method: PowerSGD) -> None:
        self._hosts, self._method = ranks_by_host(hosts), method
        first = Factors([shape], method).first_q(method.seed, torch.device("cpu")).numpy()
        self.q = first.reshape(shape[1], -1).astype(np.float64)
        self._left: list[Any] = [0.0] * len(self._hosts)
        self._steps = 0

    def step(self, gradients: Sequence[Array]) -> Array:
        """Return the low-rank mean of the gradients."""
        if self._steps < self._method.start_after:
            self._steps += 1
            return np.mean(gradients, 0)
        sums = [
            sum(gradients[rank].astype(np.float64) for rank in ranks) + left
            for ranks, left in zip(self._hosts, self._left, strict=True)
        ]
        p = np.linalg.qr(sum(it @ self.q for it in sums))[0]
        self.q = sum(it.T @ p for it in sums)
        total = p @ self.q.T
        if self._method.error_feedback:
            self._left = [it - total / len(sums) for it in sums]
        return total / len(gradients)


class DgcSimulation:
    """DGC of one flat gradient on all hosts, with velocities by host and share."""

    def __init__(self, hosts: Sequence[Any], method: Dgc) -> None:
        self._hosts, self._method = ranks_by_host(hosts), method
        self._shares = min(map(len, self._hosts))
        self._velocity: dict[Any, Array] = {}
        self._left: dict[Any, Array] = {}
        self._steps = 0

    def step(self, gradients: Sequence[Array]) -> Array:
        """Return the mean of the values that hosts send."""
        if self._method.clip is not None:
            limit = self._method.clip / len(gradients) ** 0.5
            gradients = [it * np.float32(min(1.0, limit / np.linalg.norm(it))) for it in gradients]
        codec: Codec = topk(self._method.ratio_at(self._steps))
        self._steps += 1
        result = np.zeros_like(gradients[0])
        for share, (start, end) in enumerate(_parts(len(result), self._shares)):
            for number, ranks in enumerate(self._hosts):
                total = sum((gradients[rank][start:end] for rank in ranks[1:]), gradients[ranks[0]][start:end].copy())
                key = share, number
                velocity = total + np.float32(self._method.momentum) * self._velocity.get(key, np.float32(0))
                p = velocity + self._left.get(key, np.float32(0))
                sent = codec.sent(p)
                result[start:end] += sent
                self._left[key] = p - sent
                self._velocity[key] = np.where(sent != 0, 0, velocity).astype(np.float32)
        return result / np.float32(len(gradients))
