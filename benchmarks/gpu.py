# SPDX-License-Identifier: Apache-2.0
"""Measure ranks that share one GPU: allreduce and training steps of Horovod, of Gloo, and of NCCL over sockets.

Ways: khorovod (hvd), buckets and kept (steps of hvd with gradient_as_bucket_view, whose gradients are dropped or kept
between steps), staged (hvd through host memory), backend (torch.distributed and DDP with our backend), gloo and nccl
(torch.distributed and DDP with those backends), alone (no communication). hvd-nccl and backend-nccl use NCCL, as if
each rank had its own GPU. backend-staged goes through host memory. hvd-fused and hvd-each are hvd-nccl with the tensors
of a group in one buffer, or in one call each. `messages` are sent back and forth between two ranks.

    python benchmarks/gpu.py [--ranks 2 4] [--only allreduce|groups|messages|step|jax] [--ways WAY ...] [--results FILE]

NCCL refuses to share a GPU, so each rank gets its own NCCL_HOSTID and takes the other ranks for other hosts. `jax` is a
step of a transformer in JAX, if JAX is installed for CUDA; its nccl is JAX's own psum over processes. Where NVIDIA's
MPS can be started, some parts are also measured under MPS.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from testkit.variables import LOCALHOST, free_port, of_ranks  # noqa: E402

WORKERS = {"torch": "gpu_worker", "jax": "gpu_jax_worker"}
SIZES = (4 << 10, 1 << 20, 16 << 20, 100 << 20)
MODELS = ("resnet50", "gpt")
GROUP_SIZES = (64 << 10, 1 << 20, 4 << 20, 16 << 20)  # bytes of each tensor
EACH = {
    "allreduce": tuple(map(str, SIZES)), "groups": tuple(map(str, GROUP_SIZES)), "messages": tuple(map(str, SIZES)),
    "step": MODELS, "jax": (),
}  # fmt: skip
BOTH, ALLREDUCE, GROUPS, STEP, JAX = ("allreduce", "step"), ("allreduce",), ("groups",), ("step",), ("jax",)
MESSAGES = ("messages",)


class Part(NamedTuple):
    """Part of the measurements: these ways with this number of ranks, one way after the other."""

    ranks: int
    ways: dict[str, tuple[str, ...]]
    mps: bool = False


PARTS = (
    Part(
        2,
        {"khorovod": BOTH, "gloo": BOTH, "nccl": BOTH, "alone": STEP}
        | {"staged": ALLREDUCE, "buckets": STEP, "kept": STEP, "backend": STEP, "hvd-nccl": BOTH, "backend-nccl": STEP},
    ),
    Part(2, {"khorovod": BOTH, "gloo": BOTH, "alone": STEP, "staged": ALLREDUCE}, mps=True),
    Part(4, {"khorovod": BOTH, "gloo": BOTH, "nccl": BOTH, "alone": STEP}),
    Part(4, {"khorovod": BOTH, "gloo": STEP, "alone": STEP}, mps=True),
    Part(2, {"hvd-fused": GROUPS, "hvd-each": GROUPS}),
    Part(2, {"backend": MESSAGES, "backend-staged": MESSAGES, "nccl": MESSAGES}),
    Part(2, {"khorovod": JAX, "nccl": JAX, "hvd-nccl": JAX}),
)
TRANSPORT = "HOROVOD_GPU_TRANSPORT"
# Ways that run another way with more variables.
VARIANTS = {
    "staged": ("khorovod", {TRANSPORT: "staged"}),
    "hvd-nccl": ("khorovod", {TRANSPORT: "nccl"}),
    "backend-nccl": ("backend", {TRANSPORT: "nccl"}),
    "backend-staged": ("backend", {TRANSPORT: "staged"}),
    "hvd-fused": ("khorovod", {TRANSPORT: "nccl", "HOROVOD_NCCL_FUSED_BYTES": str(1 << 40)}),
    "hvd-each": ("khorovod", {TRANSPORT: "nccl", "HOROVOD_NCCL_FUSED_BYTES": "0"}),
}
LOADED = "loaded"  # what ranks print when they wait for the signal to start
MPS_CONTROL = "nvidia-cuda-mps-control"
LIMIT_S = 150
Row = dict[str, Any]


class Team:
    """Ranks of one way. They load their libraries at once, and use the GPU only after the signal to start."""

    def __init__(self, way: str, ranks: int, whats: Sequence[str], service: Mapping[str, str]) -> None:
        self.way, self.ranks = way, ranks
        name, more = VARIANTS.get(way, (way, {}))
        port = str(free_port())
        ours = of_ranks(ranks, 1 if more.get(TRANSPORT) == "nccl" else None)
        worker = Path(__file__).parent / "benchkit" / f"{WORKERS['jax' if 'jax' in whats else 'torch']}.py"
        command = [sys.executable, str(worker), name, *(f"{what}:{one}" for what in whats for one in EACH[what])]
        self._processes: list[subprocess.Popen[str]] = []
        self._files: list[tuple[IO[str], IO[str]]] = []
        for rank in range(ranks):
            env = {**os.environ, **ours[rank], **service, **more}
            env |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "MASTER_ADDR": LOCALHOST}
            env |= {"MASTER_PORT": port, "NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo"}
            env |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "OMP_NUM_THREADS": "2"}
            out, errors = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115 - as long as the team lives
            self._files.append((out, errors))
            started = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=out, stderr=errors, text=True)
            self._processes.append(started)

    def measure(self) -> list[Row]:
        """Let the ranks measure. Return the slowest rank's row of each measurement."""
        try:
            for process in self._processes:
                assert process.stdin
                process.stdin.write("go\n")
                process.stdin.close()
            until = time.monotonic() + LIMIT_S
            for process in self._processes:
                process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            print(f"{self.way} at {self.ranks} ranks did not end within {LIMIT_S} s", file=sys.stderr)
        except BrokenPipeError:
            print(f"{self.way} at {self.ranks} ranks did not start", file=sys.stderr)
        finally:
            self.end()
        by_rank = []
        for process, (out, errors) in zip(self._processes, self._files, strict=True):
            by_rank.append([json.loads(line) for line in _text_of(out).splitlines() if line.endswith("}")])
            if process.returncode:
                print(f"{self.way}: {_text_of(errors)[-2000:]}", file=sys.stderr)
        # Keep what was measured before a failure.
        return [max(same, key=lambda row: float(row["median_s"])) for same in zip(*by_rank, strict=False)]

    def is_loaded(self) -> bool:
        """Return True if every process waits for the signal to start, or has ended; `measure` reports such an end."""
        return all(
            process.poll() is not None or LOADED in _text_of(out)
            for process, (out, _) in zip(self._processes, self._files, strict=True)
        )

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def _text_of(file: IO[str]) -> str:
    """Return all text written so far, without moving the file position at which processes write."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


@contextlib.contextmanager
def mps() -> Iterator[dict[str, str]]:
    """Run the service. Yield the variables by which processes find it."""
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        env = {**os.environ, **variables}
        subprocess.run([MPS_CONTROL, "-d"], env=env, check=True, timeout=20)
        try:
            yield variables
        finally:
            subprocess.run([MPS_CONTROL], input="quit\n", env=env, text=True, timeout=60, stdout=subprocess.DEVNULL)


def measure(part: Part, ways: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    with mps() if part.mps else contextlib.nullcontext({}) as service, contextlib.ExitStack() as ends:
        waiting = list(ways.items())
        team: Team | None = None
        while team or waiting:
            current = team or Team(waiting[0][0], part.ranks, waiting.pop(0)[1], service)
            # The next team loads its libraries now, so that it does not do so during a measurement.
            team = Team(waiting[0][0], part.ranks, waiting.pop(0)[1], service) if waiting else None
            if team:
                ends.callback(team.end)
            until = time.monotonic() + LIMIT_S
            while not all(one.is_loaded() for one in (current, team) if one) and time.monotonic() < until:
                time.sleep(0.05)
            measured = current.measure()
            if not measured:
                print(f"{part.ranks} ranks  {current.way:12} does not run here", flush=True)
            for row in measured:
                yield {**row, "way": current.way, "mps": part.mps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--only", choices=tuple(EACH))
    parser.add_argument("--ways", nargs="+", default=[])
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    rows = [_about()]
    for part in PARTS:
        if part.ranks not in options.ranks or (part.mps and not shutil.which(MPS_CONTROL)):
            continue
        for row in measure(part, _asked_of(part, options.only, options.ways)):
            rows.append(row)
            _show(row)
            if options.results:  # written after each row, so that an interrupted run keeps its rows
                options.results.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _asked_of(part: Part, only: str | None, ways: Sequence[str]) -> dict[str, tuple[str, ...]]:
    unwanted = {what for what in EACH if only not in (None, what)} | (set() if _jax_has_cuda() else {"jax"})
    left = {way: tuple(what for what in whats if what not in unwanted) for way, whats in part.ways.items()}
    return {way: whats for way, whats in left.items() if whats and (not ways or way in ways)}


def _show(row: Row) -> None:
    size = f"{row['bytes']:>10} B" if "bytes" in row else f"{row['model']:>12}"
    more = f"{row['in_a_row_s'] * 1e6:10.0f} us in a row" if "in_a_row_s" in row else ""
    where = "MPS" if row["mps"] else "   "
    print(
        f"{row['what']:9} {size} {row['ranks']} ranks {where} {row['way']:12} {row['median_s'] * 1e6:10.0f} us {more}",
        flush=True,
    )


def _jax_has_cuda() -> bool:
    return any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))


def _about() -> Row:
    """Return the software and hardware of this run. End the program where no GPU can be used."""
    import torch

    if not torch.cuda.is_available():
        why = (
            "no GPU and driver that work" if torch.backends.cuda.is_built() else "a PyTorch that is built without CUDA"
        )
        sys.exit(f"this machine has {why}: run this on one with an NVIDIA GPU and PyTorch for CUDA (see `hvd doctor`)")

    today = datetime.now(tz=timezone.utc).date().isoformat()
    return {"device": torch.cuda.get_device_name(0), "torch": torch.__version__, "date": today}


if __name__ == "__main__":
    main()
