# SPDX-License-Identifier: Apache-2.0
"""Learn to read handwritten digits on several ranks with gluon.

    horovodrun -np 2 python digits.py

Uses scikit-learn's digits if it is installed, otherwise the digits that the NumPy example draws.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "numpy"))
try:
    import digits_data
    import mxnet as mx
    import numpy as np
    from mxnet import autograd, gluon

    import horovod.mxnet as hvd
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[mxnet]'") from None


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="for each rank")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--fp16", action="store_true", help="send gradients as float16")
    return parser.parse_args()


def make_network() -> gluon.nn.HybridSequential:
    network = gluon.nn.HybridSequential()
    network.add(
        gluon.nn.Conv2D(16, kernel_size=3, activation="relu"),
        gluon.nn.Flatten(),
        gluon.nn.Dense(64, activation="relu"),
        gluon.nn.Dense(10),
    )
    network.initialize(mx.init.Xavier())
    network.hybridize()
    return network


def as_images(rows: digits_data.Array) -> mx.nd.NDArray:
    return mx.nd.array(rows.reshape(-1, 1, 8, 8))


def train_epoch(
    network: gluon.Block, trainer: gluon.Trainer, data: digits_data.Digits, batch_size: int, epoch: int
) -> float:
    """Train on this rank's part of the shuffled data for one epoch. Return the mean loss of all ranks."""
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    # All ranks shuffle with one seed and take every size-th example, so that no example is used twice.
    order = np.random.default_rng(epoch).permutation(len(data.train_labels))
    steps = len(order) // (batch_size * hvd.size())
    mine = order[hvd.rank() :: hvd.size()]
    total = mx.nd.zeros(1)
    for step in range(steps):
        batch = mine[step * batch_size : (step + 1) * batch_size]
        with autograd.record():
            loss = loss_of(network(as_images(data.train_images[batch])), mx.nd.array(data.train_labels[batch]))
        loss.backward()
        trainer.step(batch_size)  # averages the gradients over all ranks while MXNet continues
        total += loss.mean()
    return float(hvd.allreduce(total / max(steps, 1), name="loss").asscalar())


def measure_accuracy(network: gluon.Block, data: digits_data.Digits) -> float:
    """Return the share of test digits read correctly. Every rank reads its part."""
    mine = slice(hvd.rank(), None, hvd.size())
    read = network(as_images(data.test_images[mine])).argmax(axis=1).asnumpy()
    right = read == data.test_labels[mine]
    counts = hvd.allreduce(mx.nd.array([right.sum(), right.size]), op=hvd.Sum, name="accuracy").asnumpy()
    return float(counts[0] / counts[1])


def main() -> int:
    options = parse_arguments()
    hvd.init()
    mx.random.seed(hvd.rank())
    data = digits_data.load()
    network = make_network()
    # Some shapes are known only after the first batch; those parameters are broadcast then.
    hvd.broadcast_parameters(network.collect_params(), root_rank=0)
    trainer = hvd.DistributedTrainer(
        network.collect_params(),
        "sgd",
        {"learning_rate": options.learning_rate * hvd.size(), "momentum": 0.9},
        compression=hvd.Compression.fp16 if options.fp16 else hvd.Compression.none,
    )
    accuracy = 0.0
    for epoch in range(options.epochs):
        loss = train_epoch(network, trainer, data, options.batch_size, epoch)
        accuracy = measure_accuracy(network, data)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1:>2}/{options.epochs}  loss {loss:.4f}  accuracy {accuracy:.1%}", flush=True)
    return 0 if accuracy > 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
