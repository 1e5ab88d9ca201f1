# SPDX-License-Identifier: Apache-2.0
"""Residual networks with bottleneck blocks in plain torch. resnet50() has 161 parameter tensors, 25.6 M in all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

_EXPANSION = 4


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """Block of 1x1, 3x3 and 1x1 convolutions, added to its input (projected if the shapes differ)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * _EXPANSION
        self.body = nn.Sequential(
            _convolution(inputs, width, 1),
            nn.ReLU(inplace=True),
            _convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            _convolution(width, outputs, 1),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else _convolution(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet(depths: Sequence[int], width: int, classes: int) -> nn.Sequential:
    """Return a network: a stem that shrinks the image fourfold, then stages with half the size and twice the width."""
    stem = [*_convolution(3, width, 7, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
    blocks: list[nn.Module] = []
    inputs = width
    for stage, depth in enumerate(depths):
        for block in range(depth):
            blocks.append(Bottleneck(inputs, width << stage, stride=2 if block == 0 and stage > 0 else 1))
            inputs = (width << stage) * _EXPANSION
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def resnet50(classes: int = 1000) -> nn.Sequential:
    return resnet((3, 4, 6, 3), 64, classes)


def small_resnet(classes: int = 10) -> nn.Sequential:
    """Return a model for trying scripts on a laptop: 14 layers, 0.5 M parameters."""
    return resnet((1, 1, 1, 1), 16, classes)
