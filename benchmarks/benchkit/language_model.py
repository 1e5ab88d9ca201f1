# SPDX-License-Identifier: Apache-2.0
"""Small language model over characters, and its text, which needs no network: Python's standard library."""

from __future__ import annotations

import math
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

CONTEXT, BATCH = 64, 4  # characters of a sequence, and sequences of a worker's step
TOKENS_PER_STEP = CONTEXT * BATCH
_VOCABULARY = 128  # ASCII; other characters count as "?"
_WIDTH, _HEADS, _LAYERS = 128, 4, 3
_HELD_OUT = 10  # every tenth file is for validation alone
_VALIDATION_SEQUENCES = 512
_FIRST_RATE, _RATE, _LOWEST_SHARE, _WARMUP_STEPS = 2e-3, 1e-3, 0.05, 50


class Block(nn.Module):
    """Attention over the earlier characters, then two layers for each character."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.attention, self.project = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        heads = self.attention(self.norm(x)).view(rows, length, 3, _HEADS, width // _HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(rows, length, width))
        changed: torch.Tensor = x + self.down(functional.gelu(self.up(self.second_norm(x))))
        return changed


class LanguageModel(nn.Module):
    """Transformer of 0.6 million parameters that predicts the next character."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(_VOCABULARY, _WIDTH)
        self.positions = nn.Embedding(CONTEXT, _WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(_LAYERS)))
        self.norm, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _VOCABULARY)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.characters(text) + self.positions(torch.arange(text.shape[1]))
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits

    def loss(self, text: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy of predicting each character of `text` from those before it."""
        return loss_of(self, text)


def loss_of(model: nn.Module, text: torch.Tensor) -> torch.Tensor:
    """Return a model's mean cross-entropy; the model may be wrapped, as DistributedDataParallel does."""
    logits = model(text[:, :-1])
    return functional.cross_entropy(logits.reshape(-1, _VOCABULARY), text[:, 1:].reshape(-1))


def read_text() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the characters for training and those for validation."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    parts: tuple[list[bytes], list[bytes]] = [], []
    for number, file in enumerate(files):
        text = file.read_text(encoding="utf-8", errors="replace")
        parts[number % _HELD_OUT == 0].append(text.encode("ascii", errors="replace"))
    training, validation = (torch.frombuffer(bytearray(b"".join(part)), dtype=torch.uint8) for part in parts)
    return training, validation


class Batches:
    """Training batches: the batch of a step depends on the seed, the step and the worker alone."""

    def __init__(self, text: torch.Tensor, seed: int, worker: int, workers: int) -> None:
        self._text, self._seed, self._worker, self._workers = text, seed, worker, workers

    def at(self, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed((self._seed << 40) + step * self._workers + self._worker)
        starts = torch.randint(len(self._text) - CONTEXT - 1, (BATCH, 1), generator=generator)
        return self._text[starts + torch.arange(CONTEXT + 1)].long()


def validate(model: LanguageModel, text: torch.Tensor) -> float:
    """Return the loss on the validation text; all callers use the same sequences."""
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(len(text) - CONTEXT - 1, (_VALIDATION_SEQUENCES, 1), generator=generator)
    sequences = text[starts + torch.arange(CONTEXT + 1)].long()
    with torch.no_grad():
        losses = [model.loss(part).item() * len(part) for part in sequences.split(64)]
    return sum(losses) / _VALIDATION_SEQUENCES


def rate_at(step: int, steps: int) -> float:
    """Return the learning rate: a linear warm-up, then half a cosine down to a small share."""
    warm = min(_WARMUP_STEPS, max(1, steps // 10))
    if step < warm:
        return _RATE * (step + 1) / warm
    done = (step - warm) / max(1, steps - warm)
    return _RATE * (_LOWEST_SHARE + (1 - _LOWEST_SHARE) * 0.5 * (1 + math.cos(math.pi * done)))


def first_rate_at(step: int) -> float:
    """Return the learning rate of the steps that precede the comparison: a linear warm-up, then a constant."""
    return _FIRST_RATE * min(1.0, (step + 1) / _WARMUP_STEPS)
