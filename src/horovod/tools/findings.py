# SPDX-License-Identifier: Apache-2.0
"""A finding of `hvd doctor`: what was looked at, what was found, what to change."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One line of the report. `advice` is empty where there is nothing to change."""

    name: str
    value: str
    advice: str = ""


Section = tuple[str, list[Finding]]
