# SPDX-License-Identifier: Apache-2.0
"""A training step in PyTorch: cost above independent processes, of tiny parameters, compression, peak memory."""

from __future__ import annotations

from dataclasses import asdict

from benchkit.ledger import Sample
from benchkit.parts.bench import OURS, Bench
from benchkit.training import Series, Setup, cost_above, measure
from benchkit.training_ways import BOUND, QUICK, WAYS, unavailable

_WORKLOADS = ("resnet50", "gpt", "tensors", "tiny")


def measure_training(bench: Bench) -> None:
    reason = unavailable()
    if reason is not None:
        bench.say(f"training: left out, {reason}")
        return
    for workload in _WORKLOADS:
        ways = [way.name for way in WAYS if not bench.quick or way.name in QUICK]
        rounds, seconds = (4, 0.15) if bench.quick else (12, 0.3 if workload == "tiny" else 0.6)
        series, _ = measure(workload, Setup(2, ways, rounds, seconds), bench.say)
        samples = [_sample(name, one, series) for name, one in series.items()]
        ours = [name for name in series if name.startswith(OURS)]
        bench.ledger.add("training", {"workload": workload, "ranks": 2}, samples, ours)
        steps = "  ".join(f"{sample.way} {_step_ms(series[sample.way]):.3f} ms" for sample in samples)
        bench.say(f"training: {workload}: {steps}")


def _sample(way: str, one: Series, series: dict[str, Series]) -> Sample:
    more = {"peak_mib": round(one.facts["peak_mib"], 1), "tensors": one.facts["tensors"]}
    more["parameters"] = one.facts["parameters"]
    if way != BOUND and BOUND in series:
        more["cost"] = asdict(cost_above(one.rounds, series[BOUND].rounds))
    return Sample(way, one.world.library, [[step * 1e-6] for step in one.rounds], more)


def _step_ms(one: Series) -> float:
    return sorted(one.rounds)[len(one.rounds) // 2] / 1e3
