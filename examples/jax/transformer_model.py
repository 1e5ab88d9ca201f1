# SPDX-License-Identifier: Apache-2.0
"""A small decoder-only transformer in plain JAX: parameters are a dict, the model is a function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Shape:
    """Hyperparameters. They are hashable, so that jit can take them as a static argument."""

    vocabulary: int = 96
    width: int = 128
    heads: int = 4
    layers: int = 4
    context: int = 64


def initialise(key: Any, shape: Shape) -> dict[str, Any]:
    def normal(key: Any, *dims: int) -> Any:
        return jax.random.normal(key, dims) * dims[0] ** -0.5

    keys = iter(jax.random.split(key, 3 + 4 * shape.layers))
    blocks = [
        {
            "qkv": normal(next(keys), shape.width, 3 * shape.width),
            "out": normal(next(keys), shape.width, shape.width),
            "up": normal(next(keys), shape.width, 4 * shape.width),
            "down": normal(next(keys), 4 * shape.width, shape.width),
            "scale1": jnp.ones(shape.width),
            "scale2": jnp.ones(shape.width),
        }
        for _ in range(shape.layers)
    ]
    return {
        "embedding": normal(next(keys), shape.vocabulary, shape.width),
        "positions": normal(next(keys), shape.context, shape.width),
        "head": normal(next(keys), shape.width, shape.vocabulary),
        "blocks": blocks,
    }


def _normalise(x: Any, scale: Any) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def _attend(block: dict[str, Any], x: Any, shape: Shape) -> Any:
    batch, length, width = x.shape
    q, k, v = jnp.split((x @ block["qkv"]).reshape(batch, length, 3 * shape.heads, -1), 3, axis=2)
    scores = jnp.einsum("blhd,bmhd->bhlm", q, k) * (width // shape.heads) ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bhlm,bmhd->blhd", jax.nn.softmax(scores), v)
    return mixed.reshape(batch, length, width) @ block["out"]


def logits(params: dict[str, Any], tokens: Any, shape: Shape) -> Any:
    x = params["embedding"][tokens] + params["positions"][: tokens.shape[1]]
    for block in params["blocks"]:
        x = x + _attend(block, _normalise(x, block["scale1"]), shape)
        x = x + jax.nn.gelu(_normalise(x, block["scale2"]) @ block["up"]) @ block["down"]
    return x @ params["head"]


def loss(params: dict[str, Any], tokens: Any, shape: Shape) -> Any:
    """Return the mean cross-entropy of each next token. `tokens` has one more column than the model sees."""
    predicted = jax.nn.log_softmax(logits(params, tokens[:, :-1], shape))
    return -jnp.take_along_axis(predicted, tokens[:, 1:, None], axis=-1).mean()
