# SPDX-License-Identifier: Apache-2.0
"""ElasticSampler with workers that join, leave and fail: no sample is lost, and only padding is repeated."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from horovod.torch.elastic import sampler as sampler_module
from horovod.torch.elastic.sampler import ElasticSampler

# Each change ends a generation: (batches until then, whether it is a loss, number of workers of the next generation). A
# loss returns to the last commit; any other change happens at a commit.
CHANGES = st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.integers(1, 5)), max_size=6)


class Epoch:
    """Simulation of one epoch on all ranks. `seen` counts the samples that the committed state was trained on."""

    def __init__(self, samples, batch, every, seed):
        self.samples, self.batch, self.every, self.seed = samples, batch, every, seed
        self.state = {"epoch": 0, "processed_num": 0}
        self.seen = Counter()
        self.computed = Counter()  # samples of all computed batches, including those that a loss discarded
        self.thrown_away = self.padding = 0

    def shares(self, size):
        samplers = []
        for rank in range(size):
            sampler_module.rank, sampler_module.size = (lambda rank=rank: rank), (lambda: size)
            sampler = ElasticSampler(range(self.samples), seed=self.seed)
            sampler.load_state_dict(self.state)
            samplers.append(sampler)
        return samplers

    def live(self, size, most, is_loss):
        """Run a generation of at most `most` batches; return True if the epoch is over."""
        samplers = self.shares(size)
        lists = [list(sampler) for sampler in samplers]
        assert len({len(one) for one in lists}) == 1  # all ranks do the same number of steps
        left = self.samples - min(self.samples, self.state["processed_num"])
        self.padding += sum(map(len, lists)) - left
        assert sum(map(len, lists)) - left < size
        since, batches = Counter(), -(-len(lists[0]) // self.batch)
        for number in range(min(most, batches)):
            at = slice(number * self.batch, (number + 1) * self.batch)
            for sampler, one in zip(samplers, lists, strict=True):
                since.update(one[at])
                sampler.record_batch(number, len(one[at]))
            is_last = number + 1 == batches
            if (number + 1) % self.every == 0 or is_last or (number + 1 == most and not is_loss):
                self.state = samplers[0].state_dict()
                assert all(sampler.state_dict() == self.state for sampler in samplers)
                self.seen += since
                self.computed += since
                since = Counter()
        self.thrown_away += since.total()
        self.computed += since
        return most >= batches


@settings(max_examples=300, deadline=None)
@given(
    samples=st.integers(1, 60),
    batch=st.integers(1, 5),
    every=st.integers(1, 4),
    seed=st.integers(0, 3),
    first=st.integers(1, 5),
    changes=CHANGES,
)
def test_nothing_is_lost_and_only_padding_is_repeated(samples, batch, every, seed, first, changes):
    before = sampler_module.rank, sampler_module.size
    try:
        epoch, size, over = Epoch(samples, batch, every, seed), first, False
        for most, is_loss, next_size in changes:
            over = epoch.live(size, most, is_loss)
            if over:
                break
            size = next_size
        if not over:
            assert epoch.live(size, samples, False)
        sizes = [first, *(next_size for *_, next_size in changes)]
    finally:
        sampler_module.rank, sampler_module.size = before
    assert set(epoch.seen) == set(range(samples))
    repeated = epoch.seen.total() - samples
    assert repeated < max(sizes)  # only the padding of the last distribution is used
    assert epoch.computed.total() - samples <= epoch.thrown_away + repeated
