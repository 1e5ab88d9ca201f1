# SPDX-License-Identifier: Apache-2.0
"""Sampler that records the processed samples of an epoch, and divides the remaining ones when workers change."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch

from horovod.torch.mpi_ops import rank, size


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Sampler that gives each rank its part of a data set, and remembers which samples an epoch has used.

    The order depends on the seed and the epoch alone. Put the sampler into the state, call record_batch() after every
    batch and set_epoch() at the end of every epoch. If the samples do not divide evenly, some are used twice, so that
    all ranks make as many steps.

    Args:
        dataset: The data set, with a length.
        shuffle: Use another order in each epoch.
        seed: Seed of the order, equal on all ranks.

    Example:
        >>> sampler = hvd.elastic.ElasticSampler(range(10), shuffle=False)
        >>> list(sampler)  # on rank 0 of 2: [0, 2, 4, 6, 8]
    """

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        # Do not call super().__init__, because its parameter differs between versions of torch.
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch from its first sample.

        Args:
            epoch: Number of the epoch.
        """
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that every rank has processed a batch.

        The order of the other samples does not change until reset().

        Args:
            batch_idx: Number of the batch, which is not used.
            batch_size: Number of samples on each rank.
        """
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        """Return how far the epoch has got.

        Returns:
            The epoch and the number of processed samples.
        """
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on where a saved epoch was.

        Args:
            state_dict: What state_dict() returned.
        """
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divide the samples that are not processed among the present ranks."""
        self.num_replicas = size()
        self.rank = rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self.indices = self._padded()[self.rank :: self.num_replicas]

    def _padded(self) -> list[int]:
        remaining = self.remaining_indices
        return [remaining[index % len(remaining)] for index in range(self.total_size)]

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
