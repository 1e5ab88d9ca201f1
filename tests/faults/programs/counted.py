# SPDX-License-Identifier: Apache-2.0
"""Train elastically with a fixed global batch, count every sample, and report the values that tests check.

Arguments: numpy or torch, a folder, and the number of epochs. With 0 epochs, train until the folder holds a file named
stop. Each worker writes the samples that it has tried into its own file, while the state counts the samples that were
committed. Samples that pad a batch have weight 0, so results do not depend on the number of workers except for
rounding. The state adds up the loss of every batch. This sum, `curve`, shows each step that was lost, done twice or
done wrong, long after the weights have converged again.
"""

import hashlib
import os
import random
import sys
from pathlib import Path

from faultkit.reports import report

BIRTH = int(os.environ["HOROVOD_BIRTH_ID"])
report("born", birth=BIRTH)

import numpy as np  # noqa: E402 - a worker may be killed while it imports
from faultkit.holdings import holdings, open_files, shared_mappings  # noqa: E402

import horovod.numpy as hvd  # noqa: E402
from horovod.common.context import default_context  # noqa: E402
from horovod.common.elastic import ObjectState, run_fn  # noqa: E402
from horovod.common.objects import allgather_object, broadcast_object  # noqa: E402

FRAMEWORK, FOLDER, EPOCHS = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
GLOBAL_BATCH = 60  # divisible by 1 to 6 ranks
SAMPLES = 5 * GLOBAL_BATCH + 7
FEATURES = 8
COMMIT_EVERY = 3
PAUSE_S = float(os.environ.get("HOROVOD_TEST_PAUSE", "0.002"))  # leaves processor time for workers that are starting

_source = np.random.default_rng(7)
INPUTS = _source.standard_normal((SAMPLES, FEATURES))
TARGETS = INPUTS @ _source.standard_normal(FEATURES) + 0.3 * _source.standard_normal(SAMPLES)


def digest(weights):
    return hashlib.sha256(b"".join(np.ascontiguousarray(one).tobytes() for one in weights)).hexdigest()[:16]


class NumpyWork:
    """Linear regression, which tracks the order of samples itself."""

    def __init__(self):
        self.state = ObjectState(
            lambda value: broadcast_object(value, 0),
            hvd.rank,
            model=np.full(FEATURES, float(hvd.rank())),
            velocity=np.zeros(FEATURES),
            processed=0,
            epoch=0,
            steps=0,
            curve=0.0,
            counts=np.zeros(SAMPLES, np.int64),
        )

    def run(self, function):
        def reset():
            hvd.shutdown()
            hvd.init()

        run_fn(function, reset)(self.state)

    def batches(self):
        order = list(range(SAMPLES))
        random.Random(self.state.epoch).shuffle(order)
        while part := order[self.state.processed : self.state.processed + GLOBAL_BATCH]:
            part += part[: -len(part) % hvd.size()]
            yield np.array(part[hvd.rank() :: hvd.size()])

    def step(self, indexes, weights):
        inputs = INPUTS[indexes]
        errors = inputs @ self.state.model - TARGETS[indexes]
        gradient = 2 * inputs.T @ (weights * errors)
        self.state.velocity = 0.9 * self.state.velocity + hvd.allreduce(gradient, name="gradient")
        self.state.model = self.state.model - 0.01 * self.state.velocity
        return float(weights @ errors**2)

    def recorded(self, batch, count):
        self.state.processed += count * hvd.size()

    def next_epoch(self):
        self.state.processed = 0

    def weights(self):
        return [self.state.model, self.state.velocity]

    def loss(self):
        return float(((INPUTS @ self.state.model - TARGETS) ** 2).mean())


class TorchWork:
    """A small network, with the sampler and the loader that users would choose."""

    def __init__(self):
        import torch

        import horovod.torch as hvd_torch

        self.torch, self.elastic = torch, hvd_torch.elastic
        torch.manual_seed(0)
        layers = torch.nn.Linear(FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        # Double precision keeps rounding far below the differences that tests look for.
        self.model = torch.nn.Sequential(*layers).double()
        if hvd.rank() > 0:  # other ranks start with wrong weights, which rank 0's must replace
            for parameter in self.model.parameters():
                torch.nn.init.constant_(parameter, 7.0)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        optimizer = hvd_torch.DistributedOptimizer(optimizer, named_parameters=self.model.named_parameters())
        self.inputs = torch.tensor(INPUTS)
        self.targets = torch.tensor(TARGETS)
        self.sampler = self.elastic.ElasticSampler(range(SAMPLES))
        counts = np.zeros(SAMPLES, np.int64)
        self.state = self.elastic.TorchState(
            self.model, optimizer, sampler=self.sampler, epoch=0, steps=0, curve=0.0, counts=counts
        )

    def run(self, function):
        self.elastic.run(function)(self.state)

    def batches(self):
        loader = self.torch.utils.data.DataLoader(
            range(SAMPLES), batch_size=GLOBAL_BATCH // hvd.size(), sampler=self.sampler
        )
        yield from (batch.numpy() for batch in loader)

    def step(self, indexes, weights):
        self.state.optimizer.zero_grad()
        errors = self.model(self.inputs[indexes]).squeeze(1) - self.targets[indexes]
        loss = self.torch.from_numpy(weights) @ errors.square()
        loss.backward()
        self.state.optimizer.step()
        return loss.item()

    def recorded(self, batch, count):
        self.sampler.record_batch(batch, count)

    def next_epoch(self):
        self.sampler.set_epoch(self.state.epoch)

    def weights(self):
        return [parameter.detach().numpy() for parameter in self.model.parameters()]

    def loss(self):
        with self.torch.no_grad():
            return (self.model(self.inputs).squeeze(1) - self.targets).square().mean().item()


def train(state):
    is_new = True
    while not is_over(state):
        for batch, indexes in enumerate(work.batches()):
            everybodys = hvd.allgather(indexes, name="indexes")
            loss = work.step(indexes, weights_of(indexes, everybodys, state.counts))
            work.recorded(batch, len(indexes))
            # Written before it is counted. If this rank is killed in between, the count is undone, because all others
            # go back.
            tries.write(f"{state.epoch} {' '.join(map(str, indexes))}\n".encode())
            state.curve += float(hvd.allreduce(np.array([loss]), name="loss")[0])
            np.add.at(state.counts, everybodys, 1)
            state.steps += 1
            if is_new:
                is_new = False
                tell_of_first_step(state)
            if state.steps % COMMIT_EVERY == 0:
                state.commit()
            pause()
        tell_of_epoch(state)
        state.counts = np.zeros(SAMPLES, np.int64)
        state.epoch += 1
        work.next_epoch()
        state.commit()


def weights_of(indexes, everybodys, counts):
    """Return the weights of this rank's samples in the batch.

    With them, the mean over ranks is the mean over samples that are new in this epoch, each of which counts once.
    """
    times = np.bincount(everybodys, minlength=SAMPLES)
    is_new = (times > 0) & (counts == 0)
    return is_new[indexes] / times[indexes] * hvd.size() / is_new.sum()


def pause():
    import time

    time.sleep(PAUSE_S)


def is_over(state):
    """Return True if training ends.

    It ends only between two epochs, so a worker that resumes within one completes it.
    """
    asked = state.epoch >= EPOCHS if EPOCHS else not state.counts.any() and (FOLDER / "stop").exists()
    return bool(hvd.allreduce(np.array([float(asked)]), op=hvd.Sum, name="stop")[0])


def tell_of_first_step(state):
    details = {"generation": default_context.generation, "size": hvd.size(), "local_size": hvd.local_size()}
    details |= {"steps": state.steps, "holdings": holdings(), "open": open_files(), "mapped": shared_mappings()}
    report("stepped", birth=BIRTH, digest=digest(work.weights()), **details)


def tell_of_epoch(state):
    found = allgather_object(digest(work.weights()), "digests")
    if hvd.rank() == 0:
        missing, extra = int((state.counts == 0).sum()), int(state.counts.sum() - SAMPLES)
        report("epoch", birth=BIRTH, epoch=state.epoch, missing=missing, extra=extra, equal=len(set(found)) == 1)
    hvd.barrier()  # no rank commits this epoch before rank 0 has reported it


with open(FOLDER / f"tries-{BIRTH}", "wb", buffering=0) as tries:
    if FRAMEWORK == "torch":
        import torch

        import horovod.torch  # noqa: F401 - before the others wait for this worker

        torch.optim.SGD([torch.zeros(1)])  # the first one imports many modules
    hvd.init()
    work = TorchWork() if FRAMEWORK == "torch" else NumpyWork()
    work.run(train)
    found = {"loss": work.loss(), "curve": work.state.curve, "digest": digest(work.weights())}
    report("done", birth=BIRTH, epoch=work.state.epoch, **found)
