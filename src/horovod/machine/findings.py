# SPDX-License-Identifier: Apache-2.0
"""Finding of `hvd doctor`: what was checked, what was found, and what to change."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One line of the report. `advice` is empty if there is nothing to change."""

    name: str
    value: str
    advice: str = ""


Section = tuple[str, list[Finding]]
