# SPDX-License-Identifier: Apache-2.0
"""Training step in PyTorch: cost above independent processes, many small parameters, compression, peak memory."""

from __future__ import annotations

from dataclasses import asdict

from benchkit.ledger import Record, Sample
from benchkit.pairs import LEAST_PAIRS
from benchkit.parts.bench import OURS, Bench
from benchkit.training import Series, Setup, cost_above, measure
from benchkit.training_ways import BOUND, QUICK, WAYS, unavailable

_WORKLOADS = ("resnet50", "gpt", "tensors", "tiny", "many-10000")
_ROUNDS = {"gpt": 24}  # long steps need more rounds, because the cost is small compared with their variation


def measure_training(bench: Bench) -> None:
    reason = unavailable()
    if reason is not None:
        bench.say(f"training: left out, {reason}")
        return
    for workload in _WORKLOADS:
        few = bench.quick or workload.startswith("many")
        ways = [way.name for way in WAYS if not few or way.name in QUICK]
        note_training(bench, "training", {"workload": workload, "ranks": 2}, _setup(workload, ways, bench.quick))


def note_training(bench: Bench, part: str, case: Record, setup: Setup) -> None:
    """Measure the case's workload in all ways of the setup, append the results to the ledger and print them."""
    series, _ = measure(case["workload"], setup, bench.say)
    samples = [_sample(name, one, series) for name, one in series.items()]
    bench.ledger.add(part, case, samples, [name for name in series if name.startswith(OURS)])
    steps = "  ".join(f"{sample.way} {_step_ms(series[sample.way]):.3f} ms" for sample in samples)
    bench.say(f"{part}: {case['workload']}, {setup.ranks} ranks: {steps}")


def _setup(workload: str, ways: list[str], quick: bool) -> Setup:
    if quick:
        return Setup(2, ways, rounds=4, turn_seconds=0.15)
    if workload.startswith("many"):
        return Setup(2, ways, rounds=LEAST_PAIRS, turn_seconds=1.5, launches=3)
    if workload == "tiny":  # the cost depends on the placement of cache lines, which differs between launches
        return Setup(2, ways, rounds=4, turn_seconds=0.3, launches=LEAST_PAIRS)
    return Setup(2, ways, rounds=_ROUNDS.get(workload, 20), turn_seconds=1.5)


def _sample(way: str, one: Series, series: dict[str, Series]) -> Sample:
    more = {"peak_mib": round(one.facts["peak_mib"], 1), "tensors": one.facts["tensors"]}
    more["parameters"] = one.facts["parameters"]
    if way != BOUND and BOUND in series:
        more["cost"] = asdict(cost_above(one, series[BOUND]))
    return Sample(way, one.world.library, [[step * 1e-6] for step in one.rounds], more)


def _step_ms(one: Series) -> float:
    return sorted(one.rounds)[len(one.rounds) // 2] / 1e3
