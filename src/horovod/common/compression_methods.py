# SPDX-License-Identifier: Apache-2.0
"""Descriptions of the compression methods: names, arguments and their limits. The codecs are in other modules.

A description is frozen and holds no state. Ranks compare descriptions by the text that `describe` returns.
"""

from __future__ import annotations

import fnmatch
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NoReturn

ONE_BIT_BLOCK = 4096  # values that share a scale in the one-bit format
SCOPES = ("host", "all")


@dataclass(frozen=True, kw_only=True)
class CompressionMethod:
    """Arguments that all compression methods share.

    Args:
        error_feedback: Add what compression has lost in one step to the gradient of the next one.
        scope: "host" compresses only bytes that leave a host; "all" compresses between all ranks.
        exclude: Names of parameters whose gradients stay dense. `*`, `?` and `[…]` work as in file names.
        min_bytes: Gradients of fewer bytes stay dense.
    """

    error_feedback: bool = True
    scope: str = "host"
    exclude: tuple[str, ...] = ()
    min_bytes: int = 65536

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        self._store("error_feedback", self._flag("error_feedback"))
        if self.scope not in SCOPES:
            raise self._wrong("scope", "'host' or 'all'")
        self._store("exclude", self._names("exclude"))
        self._store("min_bytes", self._integer("min_bytes", 0))

    def describe(self) -> str:
        """Return the name and all arguments as a text that is equal on two ranks if and only if the methods are."""
        values = sorted((field.name, getattr(self, field.name)) for field in fields(self))
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in values)})"

    def compresses(self, name: str, nbytes: int) -> bool:
        """Return True if the gradient of this name and size is compressed rather than sent dense."""
        return nbytes >= self.min_bytes and not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.exclude)

    def compress(self, tensor: object) -> NoReturn:
        """Raise an error, because a method needs a state for each gradient, which a Compressor does not have."""
        raise ValueError(
            f"compression={self.describe()} keeps a state for each gradient: pass it to hvd.DistributedOptimizer()"
        )

    def _store(self, argument: str, value: Any) -> None:
        object.__setattr__(self, argument, value)  # a frozen dataclass is changed only while it is created

    def _wrong(self, argument: str, allowed: str) -> ValueError:
        return ValueError(f"{self.name}: {argument} must be {allowed}, not {getattr(self, argument)!r}")

    def _flag(self, argument: str) -> bool:
        value = getattr(self, argument)
        if value is not True and value is not False:
            raise self._wrong(argument, "True or False")
        return bool(value)

    def _integer(self, argument: str, lowest: int, highest: int | None = None) -> int:
        value = getattr(self, argument)
        allowed = f"a whole number, at least {lowest}" if highest is None else f"a whole number, {lowest} to {highest}"
        try:
            number = operator.index(value)
        except TypeError:
            raise self._wrong(argument, allowed) from None
        if isinstance(value, bool) or number < lowest or (highest is not None and number > highest):
            raise self._wrong(argument, allowed)
        return number

    def _real(self, argument: str, allowed: str) -> float:
        """Return the argument as a float if it is a finite number, else raise an error with `allowed`."""
        value = getattr(self, argument)
        try:
            number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise self._wrong(argument, allowed)
        return number

    def _ratio(self) -> float:
        allowed = "above 0 and at most 1"
        ratio = self._real("ratio", allowed)
        if not 0 < ratio <= 1:
            raise self._wrong("ratio", allowed)
        return ratio

    def _names(self, argument: str) -> tuple[str, ...]:
        value = getattr(self, argument)
        names = () if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
        if isinstance(value, str) or not isinstance(value, Iterable) or not all(isinstance(it, str) for it in names):
            raise self._wrong(argument, "a list or tuple of names of parameters")
        return names


@dataclass(frozen=True)
class Int8(CompressionMethod):
    """Eight bits for each value, and a float32 scale for each block of values.

    Args:
        block: Values that share a scale, a multiple of 16 from 16 to 65536.
    """

    block: int = 256

    name: ClassVar[str] = "int8"

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = "a multiple of 16 from 16 to 65536"
        try:
            block = operator.index(self.block)
        except TypeError:
            raise self._wrong("block", allowed) from None
        if block % 16 or not 16 <= block <= 65536:
            raise self._wrong("block", allowed)
        self._store("block", block)


@dataclass(frozen=True)
class OneBit(CompressionMethod):
    """The sign of each value, and the mean of the absolute values of each block of 4,096."""

    name: ClassVar[str] = "onebit"


@dataclass(frozen=True)
class TopK(CompressionMethod):
    """Index and value of the values that are largest by absolute value.

    Args:
        ratio: Share of the values that is sent, above 0 and at most 1. Up to 1.25 times as many may be sent.
    """

    ratio: float

    name: ClassVar[str] = "topk"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._store("ratio", self._ratio())


@dataclass(frozen=True)
class PowerSGD(CompressionMethod):
    """Two thin factors of each gradient that is a matrix or can be folded to one.

    Args:
        rank: Columns of each factor, at least 1.
        start_after: Steps whose gradients are sent dense before the first one that is compressed.
        min_rate: Leave an n by m matrix dense if n * m < min_rate * rank * (n + m).
        seed: Seed of the first factor, from 0 to 2**31 - 1.
    """

    rank: int = 4
    start_after: int = 100
    min_rate: float = 1.0
    seed: int = 0

    name: ClassVar[str] = "powersgd"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._store("rank", self._integer("rank", 1))
        self._store("start_after", self._integer("start_after", 0))
        allowed = "a finite number above 0"
        self._store("min_rate", self._real("min_rate", allowed))
        if self.min_rate <= 0:
            raise self._wrong("min_rate", allowed)
        self._store("seed", self._integer("seed", 0, 2**31 - 1))


@dataclass(frozen=True)
class Dgc(CompressionMethod):
    """Deep Gradient Compression: top-k of velocities that accumulate on each rank. The optimizer has no momentum.

    Args:
        ratio: Share of the values that is sent after the ramp, above 0 and at most 1.
        momentum: Factor of the velocity, at least 0 and below 1: the momentum of an optimizer for dense gradients.
        clip: Limit of the norm of the averaged gradient. Each of N ranks clips to clip / sqrt(N); None never clips.
        ramp: Shares of values that are left out at first, ascending, each at least 0 and below 1.
        ramp_steps: Steps for which each share of the ramp holds, for example the steps of one epoch.
    """

    ratio: float
    momentum: float
    clip: float | None = None
    ramp: tuple[float, ...] = (0.75, 0.9375, 0.9844, 0.996, 0.999)
    ramp_steps: int = 1000

    name: ClassVar[str] = "dgc"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._store("ratio", self._ratio())
        allowed = "at least 0 and below 1"
        self._store("momentum", self._real("momentum", allowed))
        if not 0 <= self.momentum < 1:
            raise self._wrong("momentum", allowed)
        if self.clip is not None:
            allowed = "None or a finite number above 0"
            self._store("clip", self._real("clip", allowed))
            if self.clip <= 0:
                raise self._wrong("clip", allowed)
        self._store("ramp", self._ramp())
        self._store("ramp_steps", self._integer("ramp_steps", 1))

    def ratio_at(self, step: int) -> float:
        """Return the share of the values that is sent in a step; the first step is 0."""
        level = step // self.ramp_steps
        return max(self.ratio, 1 - self.ramp[level]) if level < len(self.ramp) else self.ratio

    def _ramp(self) -> tuple[float, ...]:
        try:
            ramp = tuple(map(float, self.ramp))
        except (TypeError, ValueError):
            ramp = (math.nan,)
        if list(ramp) != sorted(ramp) or not all(0 <= share < 1 for share in ramp):
            raise self._wrong("ramp", "ascending numbers, each at least 0 and below 1")
        return ramp
