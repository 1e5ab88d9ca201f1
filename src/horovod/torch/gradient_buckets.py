# SPDX-License-Identifier: Apache-2.0
"""Gradients as views of memory that the ranks of a host share, so that nothing is staged on the way to the others."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class GradientBuckets:
    """One run of memory per dtype that holds the gradients of many parameters, each with its parameter's strides."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = parameters

    def adopt(self, parameter: torch.Tensor) -> None:
        """See to it that a parameter's gradient lies in its place."""
