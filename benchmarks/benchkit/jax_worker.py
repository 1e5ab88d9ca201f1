# SPDX-License-Identifier: Apache-2.0
"""Rank of benchmarks/jax_step.py: it builds a training step in one of three ways and runs it on request.

It reads `run COUNT` lines from standard input, and answers each with the seconds of every step, as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from benchkit import jax_ways


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=["alone", "khorovod", "gloo"])
    for number in ("rank", "ranks", "port", "width", "layers", "batch"):
        parser.add_argument(f"--{number}", type=int, required=True)
    options = parser.parse_args()
    step = stepper(*WAYS[options.way](options))
    answer({"loss": [step() for _ in range(5)][-1]})
    for line in sys.stdin:
        times = []
        for _ in range(int(line.split()[1])):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        answer({"times": times})


# Gloo prints to standard output, so answers use a duplicate of it, and all other output goes to the log.
_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def answer(message: dict[str, Any]) -> None:
    print(json.dumps(message), file=_answers, flush=True)


def stepper(function: Callable[..., Any], params: Any, tokens: Any) -> Callable[[], float]:
    """Return a function that runs a step; steps pass on the parameters and donate their memory, as in training."""
    import jax

    compiled = jax.jit(function, donate_argnums=0)

    def step() -> float:
        nonlocal params
        params, value = compiled(params, tokens)
        jax.block_until_ready(params)
        return float(value.addressable_data(0))

    return step


def alone(options: argparse.Namespace) -> jax_ways.Step:
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    return jax_ways.alone(options)


WAYS: dict[str, Callable[[argparse.Namespace], jax_ways.Step]] = {
    "alone": alone,
    "khorovod": jax_ways.khorovod,
    "gloo": jax_ways.psum,
}

if __name__ == "__main__":
    main()
