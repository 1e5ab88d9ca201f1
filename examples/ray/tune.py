# SPDX-License-Identifier: Apache-2.0
"""Search for a good learning rate: several distributed trials at once; ASHA stops bad ones early.

python examples/ray/tune.py                            # starts Ray on this machine
RAY_ADDRESS=auto python tune.py --at-once 4            # on the cluster that this machine belongs to
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

try:
    import ray
    from digits import digits, train
    from ray import tune
    from ray.train import RunConfig, ScalingConfig
    from ray.tune.integration.ray_train import TuneReportCallback
    from ray.tune.schedulers import ASHAScheduler

    from horovod.ray import HorovodTrainer
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[ray,examples]'") from None


def trial(config: dict[str, Any]) -> None:
    """Run one trial. It has its own workers, rendezvous and secret."""
    training, validation = digits()
    trainer = HorovodTrainer(
        train,
        train_loop_config={"lr": config["lr"], "epochs": config["epochs"]},
        scaling_config=ScalingConfig(num_workers=config["workers"], resources_per_worker={"CPU": 0.25}),
        run_config=RunConfig(storage_path=config["output"], callbacks=[TuneReportCallback()]),
        datasets={"train": training, "validation": validation},
    )
    trainer.fit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="of each trial")
    parser.add_argument("--epochs", type=int, default=3, help="at most")
    parser.add_argument("--at-once", type=int, default=2, help="trials")
    parser.add_argument("--output", type=Path, default=Path("example-output/ray-tune"))
    options = parser.parse_args()
    ray.init()
    output = str(options.output.resolve())
    fixed = {"epochs": options.epochs, "workers": options.workers, "output": output}
    tuner = tune.Tuner(
        # The trial itself computes nothing; its workers' resources are added.
        tune.with_resources(trial, {"CPU": 0.1}),
        # Put promising rates first, because ASHA stops a trial that is worse than earlier ones.
        param_space={"lr": tune.grid_search([0.05, 0.02, 0.002, 0.0002]), **fixed},
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            scheduler=ASHAScheduler(max_t=options.epochs, grace_period=1, reduction_factor=2),
            max_concurrent_trials=options.at_once,
        ),
        run_config=tune.RunConfig(storage_path=output),
    )
    results = tuner.fit()
    for result in results:
        rate, epochs = result.config["lr"], result.metrics["epoch"]
        print(f"learning rate {rate:g}: accuracy {result.metrics['accuracy']:.1%} after {epochs} epochs")
    print(f"best learning rate: {results.get_best_result().config['lr']:g}")


if __name__ == "__main__":
    main()
