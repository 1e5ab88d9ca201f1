# SPDX-License-Identifier: Apache-2.0
"""Rank of benchmarks/diloco.py: it trains the small language model in one way and writes what it found as JSON."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from testkit.lifetimes import die_with_parent

from benchkit import language_model
from benchkit.diloco_ways import BY_NAME, OURS, Way, start, trainer_of


def train(way: Way, options: argparse.Namespace) -> dict[str, Any]:
    """Train, and return the loss, the bytes that this rank sent, and the time of the steps."""
    seed, steps = options.seed, options.steps
    rank, workers = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
    torch.manual_seed(seed)  # all workers begin with equal weights
    model = language_model.LanguageModel()
    if options.start:
        model.load_state_dict(torch.load(options.start, weights_only=True))
    training, validation = language_model.read_text()
    # The steps that precede the comparison see other batches.
    batches = language_model.Batches(training, 2 * seed + bool(options.save), rank, workers)
    start(way, options.folder)
    trainer = trainer_of(way, model)
    meet(way)
    before, sent_before, began = counters(way), interface_sent(), time.perf_counter()
    for step in range(steps):
        rate = language_model.first_rate_at(step) if options.save else language_model.rate_at(step, steps)
        trainer.step(batches.at(step), rate)
    trainer.finish()
    seconds = time.perf_counter() - began
    after = counters(way)
    if options.save and rank == 0:
        torch.save(model.state_dict(), options.save)
    return {
        "rank": rank,
        "loss": language_model.validate(model, validation) if rank == 0 else None,
        "seconds": seconds,
        "bytes": {name: after[name] - before[name] for name in after},
        "interface_bytes": interface_sent() - sent_before,
        "weights": digest_of(model),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "torch": torch.__version__,
    }


def meet(way: Way) -> None:
    """Wait until all ranks are ready to train."""
    if way.library == OURS:
        import horovod.torch as hvd

        hvd.barrier()
    else:
        torch.distributed.barrier()


def counters(way: Way) -> dict[str, int]:
    """Return the byte counters of this rank; empty for other libraries, which count nothing."""
    if way.library != OURS:
        return {}
    import horovod.torch as hvd

    return {name: value for name, value in hvd.counters().items() if value is not None}


def interface_sent() -> int:
    """Return the bytes that the interface BENCH_INTERFACE of this rank's host has sent; 0 without such a name."""
    wanted = os.environ.get("BENCH_INTERFACE", "")
    for line in Path("/proc/self/net/dev").read_text(encoding="utf-8").splitlines():
        name, _, numbers = line.partition(":")
        if wanted and name.strip() == wanted:
            return int(numbers.split()[8])
    return 0


def digest_of(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=list(BY_NAME))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--start", type=Path, help="file with the weights to begin with")
    parser.add_argument("--save", type=Path, help="make the steps that precede a comparison; save the weights here")
    parser.add_argument("--cores", default="", help="cores of this rank, separated by commas")
    options = parser.parse_args()
    die_with_parent()
    if options.cores:
        os.sched_setaffinity(0, {int(core) for core in options.cores.split(",")})
    torch.set_num_threads(1)
    found = train(BY_NAME[options.way], options)
    draft = options.folder / f"draft-{found['rank']}"
    draft.write_text(json.dumps(found))
    draft.rename(options.folder / f"found-{found['rank']}.json")
    if BY_NAME[options.way].library == OURS:
        import horovod.torch as hvd

        hvd.shutdown()
    else:
        torch.distributed.barrier()  # no rank closes its connections while another still averages
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
