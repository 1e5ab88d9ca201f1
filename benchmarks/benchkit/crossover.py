# SPDX-License-Identifier: Apache-2.0
"""Model of an exchange's time at any bandwidth: a fixed time, and the time of its bytes on the wire. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_NO_LIMIT = 1e12  # bits per second; a method that pays up to here pays at any bandwidth


@dataclass(frozen=True)
class Exchange:
    """Time that one way adds to a step. `fixed_s`: codecs, copies and messages, which do not depend on bandwidth."""

    name: str
    bytes_sent: float  # bytes sent by a host in a step
    fixed_s: float

    @classmethod
    def measured(cls, name: str, bytes_sent: float, seconds: float, bits_per_s: float) -> Exchange:
        """Return the exchange that took `seconds` over a link with a data rate of `bits_per_s`."""
        return cls(name, bytes_sent, max(0.0, seconds - 8 * bytes_sent / bits_per_s))

    def seconds(self, bits_per_s: float) -> float:
        """Return the exchange's time at a bandwidth."""
        return self.fixed_s + 8 * self.bytes_sent / bits_per_s


def pays_below(method: Exchange, dense: Exchange) -> float:
    """Return the bits per second below which the method is faster than dense: 0 for never, infinity for always."""
    saved = 8 * (dense.bytes_sent - method.bytes_sent)
    added = method.fixed_s - dense.fixed_s
    if added <= 0:
        return math.inf if saved >= 0 else 0.0
    return max(0.0, saved / added)


def fastest(exchanges: Iterable[Exchange], bits_per_s: float) -> Exchange:
    """Return the fastest exchange at a bandwidth; of equally fast ones the first."""
    return min(exchanges, key=lambda exchange: exchange.seconds(bits_per_s))


def bandwidth_text(bits_per_s: float) -> str:
    """Return a bandwidth as text with two digits; `any` for more than any network has, `none` for 0."""
    if bits_per_s >= _NO_LIMIT:
        return "any"
    if bits_per_s <= 0:
        return "none"
    rounded = float(f"{bits_per_s:.2g}")
    for unit, factor in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if rounded >= factor:
            return f"{rounded / factor:g} {unit}"
    return f"{rounded:g} bit/s"
