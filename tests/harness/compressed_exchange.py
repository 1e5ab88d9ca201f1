# SPDX-License-Identifier: Apache-2.0
"""Simulation of all ranks' compressed exchanges in one process with NumPy, to check communication hooks against."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from harness import compression_reference as reference

Array = np.ndarray[Any, np.dtype[Any]]
UNIT = 4096  # shares and chunks begin at multiples of this number of values


class Codec:
    """Wire format without state."""

    def __init__(self, encode: Callable[[Array], bytes], decode: Callable[[bytes, int], Array]) -> None:
        self.encode = encode
        self.decode = decode

    def sent(self, p: Array) -> Array:
        """Return the values that other ranks decode from the message for `p`."""
        return self.decode(self.encode(p), len(p)) if len(p) else p


def int8(block: int) -> Codec:
    return Codec(lambda p: reference.int8_encode(p, block), lambda wire, n: reference.int8_decode(wire, n, block))


def onebit() -> Codec:
    return Codec(reference.onebit_encode, reference.onebit_decode)


def topk(ratio: float) -> Codec:
    return Codec(lambda p: reference.topk_encode(p, ratio), reference.topk_decode)


class Simulation:
    """Simulation of all ranks of some hosts, with residuals by host and range."""

    def __init__(self, hosts: Sequence[str], codec: Codec, two_stages: bool, feedback: bool = True) -> None:
        self._hosts = [[rank for rank, it in enumerate(hosts) if it == host] for host in dict.fromkeys(hosts)]
        self._shares = min(map(len, self._hosts))
        self._codec, self._two_stages, self._feedback = codec, two_stages, feedback
        self._left: dict[Any, Array] = {}

    def step(self, gradients: Sequence[Array]) -> Array:
        """Return the result on every rank: the mean of the gradients, with the messages' quantization errors."""
        result = np.zeros_like(gradients[0])
        left = dict(self._left)
        for share, (start, end) in enumerate(_parts(len(result), self._shares)):
            sums = [
                sum((gradients[rank][start:end] for rank in ranks[1:]), gradients[ranks[0]][start:end].copy())
                for ranks in self._hosts
            ]
            sent = [self._send((share, number), it, left) for number, it in enumerate(sums)]
            for number, (first, last) in enumerate(_parts(end - start, len(sums))):
                if self._two_stages:
                    total = sum((it[first:last] for it in sent[1:]), sent[0][first:last].copy())
                    total = self._send((share, number, "server"), total, left)
                    result[start + first : start + last] = total
            if not self._two_stages:
                result[start:end] = sum(sent[1:], sent[0].copy())
        result /= np.float32(len(gradients))
        if np.isfinite(result).all() and self._feedback:
            self._left = left
        return result

    def _send(self, key: Any, values: Array, left: dict[Any, Array]) -> Array:
        p = values + left[key] if key in left else values
        if not self._two_stages or "server" in key:
            sent = self._codec.sent(p)
        else:  # each chunk is a separate message
            parts = [self._codec.sent(p[first:last]) for first, last in _parts(len(p), len(self._hosts))]
            sent = np.concatenate(parts)
        left[key] = p - sent
        return sent


def _parts(values: int, count: int) -> list[tuple[int, int]]:
    units = -(-values // UNIT)
    bounds = [min(values, units * part // count * UNIT) for part in range(count)] + [values]
    return list(itertools.pairwise(bounds))
