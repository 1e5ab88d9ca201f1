# SPDX-License-Identifier: Apache-2.0
"""Learn to read handwritten digits with Lightning and Trainer(strategy="horovod").

    python lightning_digits.py                     # Lightning starts the second process itself
    horovodrun -np 2 python lightning_digits.py

Needs lightning, and scikit-learn for its digits.
"""

from __future__ import annotations

import argparse
from typing import Any

try:
    import lightning
    import torch
    from ddp_digits import datasets
    from torch.utils.data import DataLoader

    import horovod.torch.distributed.lightning  # noqa: F401 - registers the strategy
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[examples]' lightning") from None


class Reader(lightning.LightningModule):
    """Module with a small network. Lightning averages its logged values over all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.network(images), labels)

    def validation_step(self, batch: Any, index: int) -> None:
        images, labels = batch
        right = (self.network(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        if self.global_rank == 0 and not self.trainer.sanity_checking:
            reached = float(self.trainer.callback_metrics.get("accuracy", 0.0))
            print(f"epoch {self.current_epoch + 1}: accuracy {reached:.1%}", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2, help="on this host")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lightning.seed_everything(0, verbose=False)
    learn, test = datasets()
    trainer = lightning.Trainer(
        strategy="horovod",
        accelerator="cpu",
        devices=options.processes,
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Reader(), DataLoader(learn, 32, shuffle=True), DataLoader(test, 32))


if __name__ == "__main__":
    main()
