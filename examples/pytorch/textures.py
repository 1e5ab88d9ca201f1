# SPDX-License-Identifier: Apache-2.0
"""Generated images for scripts that need many: noisy stripes whose direction and width are the class."""

from __future__ import annotations

import math

import torch
from torch.utils.data import Dataset

CLASSES = 10


class Textures(Dataset[tuple[torch.Tensor, int]]):
    """Dataset of `count` images with three channels. Image `index` is equal on every rank and in every run."""

    def __init__(self, count: int, image_size: int, seed: int) -> None:
        self.count = count
        self.seed = seed
        steps = torch.arange(image_size) / image_size
        self.rows, self.columns = torch.meshgrid(steps, steps, indexing="ij")

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        label = index % CLASSES
        angle, waves = math.pi * (label % 5) / 5, 3 + 3 * (label // 5)
        phase = float(torch.rand((), generator=generator)) * 2 * math.pi
        along = self.rows * math.cos(angle) + self.columns * math.sin(angle)
        stripes = torch.sin(2 * math.pi * waves * along + phase)
        return stripes + 0.8 * torch.randn(3, *stripes.shape, generator=generator), label
