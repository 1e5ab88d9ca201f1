# SPDX-License-Identifier: Apache-2.0
"""Elastic worker of benchmarks/diloco.py --slow-link: it trains until it is ended, and records when it made its steps.

Arguments: the name of a way, and a folder in which each process has its own file of JSON lines. Times are of the
monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import horovod.torch as hvd

import torch  # isort: skip

from benchkit import language_model
from benchkit.diloco_ways import BY_NAME, trainer_of

_RATE = 1e-3
_STEPS_BETWEEN_NOTES = 5


def main() -> None:
    way, folder = BY_NAME[sys.argv[1]], Path(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = language_model.LanguageModel()
    training, _ = language_model.read_text()
    hvd.init()
    trainer = trainer_of(way, model)
    made = 0
    with open(folder / f"worker-{os.getpid()}", "ab", buffering=0) as file:

        def note(**what: Any) -> None:
            line = {"pid": os.getpid(), "at": time.monotonic(), "steps": made, "size": hvd.size(), **what}
            file.write((json.dumps(line) + "\n").encode())

        @hvd.elastic.run
        def train(state: Any) -> None:
            nonlocal made
            batches = language_model.Batches(training, 1, hvd.rank(), hvd.size())
            note(began=True)
            while True:
                trainer.step(batches.at(state.step), _RATE)
                state.step += 1
                made += 1
                if made % _STEPS_BETWEEN_NOTES == 0:
                    note()
                state.commit()

        train(hvd.elastic.TorchState(model=model, optimizer=trainer.optimizer, step=0))


if __name__ == "__main__":
    main()
