# SPDX-License-Identifier: Apache-2.0
"""Models and data of the training-step benchmark: the forward pass returns the loss, and each rank has a batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchkit.examples import example

gpt_model = example("pytorch", "gpt_model")
resnet50 = example("pytorch", "resnet").resnet50

Inputs = tuple[torch.Tensor, ...]

TINY_TENSORS = 200
MANY_ELEMENTS = 16  # elements of each parameter of `many-N`


class Classifier(nn.Module):
    """Network with its cross-entropy loss."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.network(images), labels)


class LanguageModel(nn.Module):
    def __init__(self, size: gpt_model.Size) -> None:
        super().__init__()
        self.gpt = gpt_model.Gpt(size)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.gpt.loss(tokens)


class Sums(nn.Module):
    """Parameters of given shapes, with only the arithmetic that gives all of them gradients."""

    def __init__(self, shapes: list[torch.Size]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in shapes)

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        return torch.stack([weight.sum() for weight in self.weights]).sum() * factor


def resnet50_shapes() -> list[torch.Size]:
    with torch.device("meta"):  # shapes only, because allocated memory would count as this workload's peak
        return [parameter.shape for parameter in resnet50().parameters()]


_GPT = gpt_model.Size(vocabulary=3000, context=128, layers=6, heads=8, width=512)  # 20.5 M parameters

_MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet50": lambda: Classifier(resnet50(classes=1000)),
    "gpt": lambda: LanguageModel(_GPT),
    "tensors": lambda: Sums(resnet50_shapes()),
    "tiny": lambda: Sums([torch.Size([1])] * TINY_TENSORS),
}

_INPUTS: dict[str, Callable[[int], Inputs]] = {
    "resnet50": lambda batch: (torch.randn(batch, 3, 32, 32), torch.randint(1000, (batch,))),
    "gpt": lambda batch: (torch.randint(_GPT.vocabulary, (batch, _GPT.context + 1)),),
    "tensors": lambda batch: (torch.randn(()),),
    "tiny": lambda batch: (torch.randn(()),),
    "many": lambda batch: (torch.randn(()),),
}


def build(name: str, rank: int, batch: int) -> tuple[nn.Module, Inputs]:
    """Return a model with equal weights on every rank, and this rank's own data. "many-N" has N small parameters."""
    torch.manual_seed(0)
    kind, _, count = name.partition("-")
    model = Sums([torch.Size([MANY_ELEMENTS])] * int(count)) if count else _MODELS[kind]()
    torch.manual_seed(1 + rank)
    return model, _INPUTS[kind](batch)
