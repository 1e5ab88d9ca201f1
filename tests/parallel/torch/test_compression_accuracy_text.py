# SPDX-License-Identifier: Apache-2.0
"""Accuracy of a small language model with compressed gradients, which predicts the next character of English text."""

from functools import cache
from statistics import mean

import pytest
import torch
from harness.torch_training import on_torch_ranks
from harness.worlds import ROUNDING

import horovod.torch as hvd

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HOSTS2 = ROUNDING[0]
SEEDS = (1, 2, 3)
CONTEXT = 8  # characters from which the next one is predicted
CHARACTERS = 128
LEARNED, HELD_OUT = 150_000, 20_000  # characters
STEPS = 400
ADAM_RATE = 3e-3
BATCH = 128
SMALL = {"min_bytes": 1024}
METHODS = {
    "int8": lambda **more: hvd.Compression.int8(**SMALL, **more),
    "topk": lambda **more: hvd.Compression.topk(0.05, **SMALL, **more),
    "powersgd": lambda **more: hvd.Compression.powersgd(8, 20, **SMALL, **more),
}


@cache
def text():
    """Return the beginning of the documentation that Python contains, as numbers of characters."""
    from pydoc_data.topics import topics

    joined = "".join(topics[name] for name in sorted(topics)).encode("ascii", "ignore")
    assert len(joined) > LEARNED + HELD_OUT
    return torch.tensor(list(joined[: LEARNED + HELD_OUT]))


def examples(starts):
    """Return the characters before some positions of the text, and those at the positions."""
    windows = text()[starts[:, None] + torch.arange(CONTEXT + 1)]
    return windows[:, :-1], windows[:, -1]


def make_optimizer(model, method):
    named = list(model.named_parameters())
    if method == "onebit-adam":
        return hvd.OneBitAdam(model.parameters(), ADAM_RATE, named_parameters=named, freeze_after=100, **SMALL)
    if method == "adam":
        return hvd.DistributedOptimizer(torch.optim.AdamW(model.parameters(), ADAM_RATE, weight_decay=0), named)
    compression = hvd.Compression.none if method is None else method
    return hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), named, compression=compression
    )


def train(method, seed):
    """Return the share of held-out characters that are predicted, in points, and the loss there."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Embedding(CHARACTERS, 16),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * CONTEXT, 128),
        torch.nn.Tanh(),
        torch.nn.Linear(128, CHARACTERS),
    )
    optimizer = make_optimizer(model, method)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    order = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        starts = torch.randint(0, LEARNED - CONTEXT, (BATCH * hvd.size(),), generator=order)
        inputs, labels = examples(starts[hvd.rank() :: hvd.size()])
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        schedule.step()
    inputs, labels = examples(torch.arange(LEARNED, LEARNED + HELD_OUT - CONTEXT))
    with torch.no_grad():
        scores = model(inputs)
    right = (scores.argmax(1) == labels).double().mean().item()
    return 100 * right, torch.nn.functional.cross_entropy(scores, labels).item()


def means(method):
    found = [train(method, seed) for seed in SEEDS]
    return mean(it[0] for it in found), mean(it[1] for it in found)


@on_torch_ranks(HOSTS2, limit_s=800)
def test_accuracy_on_text():
    dense, adam = means(None), means("adam")
    found = {name: means(make()) for name, make in METHODS.items()}
    found["onebit-adam"] = means("onebit-adam")
    print("dense", dense, "adam", adam, found)
    assert min(dense[0], adam[0]) > 30  # guessing the most common character gives about 16 points
    for name, (accuracy, _) in found.items():
        beside = adam if name == "onebit-adam" else dense
        assert accuracy > beside[0] - 1.5, (name, accuracy, beside)
    return found


@on_torch_ranks(HOSTS2, limit_s=800)
@pytest.mark.parametrize("name", ["onebit", "topk", "powersgd"])
def test_without_feedback_it_is_clearly_worse(name):
    """One seed suffices, because the differences are many times those between seeds."""
    arguments = {"onebit": {}, "topk": {"ratio": 0.005}, "powersgd": {"rank": 1, "start_after": 5}}[name]
    make = getattr(hvd.Compression, name)
    with_feedback, without = (
        train(make(**arguments, **SMALL, error_feedback=feedback), 1) for feedback in (True, False)
    )
    print(name, with_feedback, without)
    assert without[1] > 1.05 * with_feedback[1], (with_feedback, without)
