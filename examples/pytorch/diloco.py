# SPDX-License-Identifier: Apache-2.0
"""Train with DiLoCo: each worker trains alone, and the workers exchange weights only in rounds.

    horovodrun -np 2 python diloco.py
    horovodrun -np 2 python diloco.py --every 40 --wire int4
    sudo python two_sites.py --mbit-per-s 10 python diloco.py     # two workers behind a slow link

Rank 0 prints, for each epoch, validation loss and accuracy, and the bytes that it sent.
"""

from __future__ import annotations

import argparse
import sys
import time

try:
    import torch
    from digits_dataset import DigitsNet, load, training_loader, validate
    from torch import nn

    import horovod.torch as hvd
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[examples]'") from None


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16, help="images of one worker's step")
    parser.add_argument("--every", type=int, default=20, help="steps of a round")
    parser.add_argument("--wire", choices=("fp32", "bf16", "int8", "int4"), default="fp32")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    hvd.init()
    training, validation = load()
    loader = training_loader(training, options.batch, seed=0)
    model = DigitsNet()
    # AdamW, because the outer momentum multiplies progress: plain SGD with a large rate would diverge.
    optimizer = hvd.DiLoCo(torch.optim.AdamW(model.parameters(), lr=1e-3), every=options.every, wire=options.wire)
    first = accuracy = 0.0
    for epoch in range(options.epochs):
        loader.sampler.set_epoch(epoch)
        began, before = time.perf_counter(), hvd.counters()
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        if epoch == options.epochs - 1:
            optimizer.finish()  # all workers end with the global weights
        seconds, after = time.perf_counter() - began, hvd.counters()
        sent = sum((after[name] or 0) - (before[name] or 0) for name in ("data_bytes_sent", "control_bytes_sent"))
        # Between two rounds the workers' weights differ, so that this is the average of their models' results.
        loss, accuracy = validate(model, validation, torch.device("cpu"))
        first = first or loss
        if hvd.rank() == 0:
            print(
                f"epoch {epoch + 1}/{options.epochs}  {seconds:5.1f} s  {sent / 1e6:6.2f} MB sent over the network  "
                f"validation {loss:.3f}, {accuracy:.1%}",
                flush=True,
            )
    return 0 if loss < first and accuracy > 0.5 else 1


if __name__ == "__main__":
    sys.exit(main())
