# SPDX-License-Identifier: Apache-2.0
"""A small GPT: token and position embeddings, blocks of causal self-attention and a feed-forward net, tied output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Size:
    vocabulary: int
    context: int = 64
    layers: int = 4
    heads: int = 4
    width: int = 128


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.before_attention = nn.LayerNorm(size.width)
        self.query_key_value = nn.Linear(size.width, 3 * size.width)
        self.projection = nn.Linear(size.width, size.width)
        self.before_feed = nn.LayerNorm(size.width)
        self.feed = nn.Sequential(
            nn.Linear(size.width, 4 * size.width), nn.GELU(), nn.Linear(4 * size.width, size.width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self._attend(self.before_attention(x))
        return x + self.feed(self.before_feed(x))

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.query_key_value(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        return self.projection(mixed.transpose(1, 2).reshape(batch, length, width))


class Gpt(nn.Module):
    """Model that returns scores for the next token at every position."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Parameter(torch.zeros(size.context, size.width))
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.last = nn.LayerNorm(size.width)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        # The output layer uses the embedding table: one parameter, used twice in a backward pass.
        return functional.linear(self.last(self.blocks(x)), self.tokens.weight)

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy of every token after the first, given those before it."""
        scores = self(tokens[:, :-1])
        return functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())

    @torch.no_grad()
    def continue_text(self, tokens: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
        for _ in range(count):
            scores = self(tokens[:, -self.size.context :])[:, -1]
            following = torch.multinomial(functional.softmax(scores, dim=-1), 1, generator=generator)
            tokens = torch.cat([tokens, following], dim=1)
        return tokens


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
