# SPDX-License-Identifier: Apache-2.0
"""Cost that the training benchmark estimates from pairs of measurements, and its confidence interval."""

from __future__ import annotations

import numpy as np
import pytest
from benchkit.pairs import cost_of


def test_interval_is_that_of_the_signed_rank_test() -> None:
    # The differences are powers of two, so that the mean of each pair is unique and each rank in the order has one
    # value. For twenty pairs at 5 %, the critical rank sum of the signed-rank test is 52.
    differences = [float(1 << power) for power in range(20)]
    means = sorted((a + b) / 2 for index, a in enumerate(differences) for b in differences[index:])
    cost = cost_of(differences)
    assert (cost.low, cost.high) == (means[52], means[-53])
    assert cost.value == np.median(means)


@pytest.mark.parametrize("count", [1, 3, 6])
def test_with_few_pairs_it_is_all_that_was_seen(count: int) -> None:
    cost = cost_of([float(number) for number in range(count)])
    assert (cost.low, cost.value, cost.high) == (0.0, (count - 1) / 2, count - 1)


def test_wild_pairs_do_no_harm() -> None:
    calm = list(np.random.default_rng(0).normal(10, 1, 18))
    cost = cost_of([*calm, 500.0, -300.0])
    assert abs(cost.value - 10) < 0.5
    assert 9 < cost.low < cost.high < 11.5


def test_interval_holds_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    costs = [cost_of(random.laplace(5, 2, 12)) for _ in range(1000)]
    held = np.mean([cost.low <= 5 <= cost.high for cost in costs])
    assert 0.935 < held < 0.985
