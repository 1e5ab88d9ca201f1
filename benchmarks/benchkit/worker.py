# SPDX-License-Identifier: Apache-2.0
"""Rank of a world: it joins the world of one library, then executes orders from a socket and sleeps in between.

Run as `python -m benchkit.worker`; benchkit.world starts it and has the other end of the socket. Each order and each
answer is a line of JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import socket
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from testkit.lifetimes import die_with_parent

from benchkit.backend import Backend, Operation, UnsupportedError, join_world
from benchkit.gate import Gate
from benchkit.problem import Problem

_RANK_VARIABLES = ("BENCH_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


class Obedient:
    """Base of workers, which have a method do_x for every order x."""

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        action = order.pop("do")
        answer: dict[str, Any] = getattr(self, f"do_{action}")(**order)
        return answer


class Worker(Obedient):
    """Prepared operations of one rank, by name, and their measurement."""

    def __init__(self, backend: Backend, gate: Gate, rank: int) -> None:
        self.backend = backend
        self.gate = gate
        self.rank = rank
        self.operations: dict[str, Operation] = {}

    def do_prepare(self, name: str, door: str, problem: dict[str, Any]) -> dict[str, Any]:
        """Allocate, run once and check the result, because times of a wrong collective are worthless."""
        wanted = Problem(**problem)
        operation = self.backend.prepare(wanted, door)
        operation.run()
        expected = wanted.expected(self.rank)
        for result in operation.results():
            if not np.array_equal(np.asarray(result).ravel(), expected):
                raise ArithmeticError(f"wrong result of {wanted} on rank {self.rank}")
        operation.rewrite()  # sets the inputs to zero, which repeated sums do not change
        self.operations[name] = operation
        return {}

    def do_measure(self, name: str, warmup: int, iterations: int, dirty: bool, aligned: bool) -> dict[str, Any]:
        """Return the nanoseconds of each run. With `aligned`, all ranks start each run together."""
        operation = self.operations[name]
        run, meet, clock = operation.run, self.gate.meet, time.perf_counter_ns
        times = []
        for _ in range(warmup):
            run()
        meet()
        if operation.timed is not None and aligned and not dirty:
            return {"times": operation.timed(iterations)}
        for _ in range(iterations):
            if dirty:
                operation.rewrite()
            if dirty or aligned:
                meet()
            start = clock()
            run()
            times.append(clock() - start)
        return {"times": times}

    def do_forget(self) -> dict[str, Any]:
        self.operations.clear()
        gc.collect()
        return {}

    def do_idle(self, seconds: float) -> dict[str, Any]:
        """Return processor time and wake-ups of all threads of this process while it does nothing."""
        before = resource.getrusage(resource.RUSAGE_SELF)
        time.sleep(seconds)
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {"cpu_s": cpu, "wakeups": after.ru_nvcsw - before.ru_nvcsw}


def answer_to(worker: Obedient, line: str) -> dict[str, Any]:
    try:
        return worker.obey(json.loads(line))
    except (UnsupportedError, NotImplementedError) as error:
        return {"unsupported": str(error)}
    except Exception:
        return {"error": traceback.format_exc()}


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def parse_arguments() -> argparse.Namespace:
    """Return the arguments that benchkit.world passes to every rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("backend")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--gate", type=Path, required=True)
    parser.add_argument(
        "--cores", default="", help="for each rank one, or several (0+8); empty: wherever the system likes"
    )
    return parser.parse_args()


def settle(options: argparse.Namespace) -> int:
    """Pin this rank to its cores; return its number."""
    die_with_parent()
    rank = next(int(os.environ[name]) for name in _RANK_VARIABLES if name in os.environ)
    if options.cores:
        os.sched_setaffinity(0, {int(core) for core in options.cores.split(",")[rank].split("+")})
    return rank


def serve(control: socket.socket, hello: dict[str, Any], worker: Obedient) -> None:
    """Send the greeting, then answer orders until the benchmark closes its end or dies."""
    with control, control.makefile("rw") as lines:
        lines.write(json.dumps(hello) + "\n")
        lines.flush()
        for line in lines:
            lines.write(json.dumps(answer_to(worker, line)) + "\n")
            lines.flush()


def main() -> None:
    options = parse_arguments()
    rank = settle(options)
    control = socket.socket(socket.AF_UNIX)
    control.connect(options.socket)
    resident = resident_bytes()
    backend = join_world(options.backend, rank, options.ranks)
    hello = {"rank": rank, "pid": os.getpid(), "library": backend.library, "added_bytes": resident_bytes() - resident}
    gate = Gate(options.gate, rank, options.ranks, crowded=not options.cores)
    gc.disable()  # a garbage collection during a run would increase the library's time
    serve(control, hello, Worker(backend, gate, rank))
    backend.close()


if __name__ == "__main__":
    main()
