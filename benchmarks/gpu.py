# SPDX-License-Identifier: Apache-2.0
"""Several ranks that share one GPU: allreduce and training steps beside Gloo and NCCL over sockets, in the same run.

Ways: khorovod (hvd), buckets and kept (steps of hvd with gradient_as_bucket_view, whose gradients are dropped or kept
between steps), staged (hvd through host memory), backend (torch.distributed and DDP over our backend), gloo and nccl
(the same over those), alone (no communication).

    python benchmarks/gpu.py [--ranks 2 4] [--only allreduce|step|jax] [--results FILE]

NCCL refuses to share a GPU; a different NCCL_HOSTID for each rank makes it take the others for other hosts. `jax` is a
step of a transformer in JAX, where it is installed for CUDA: beside nccl, which is JAX's own psum over processes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from testkit.variables import LOCALHOST, free_port, of_ranks  # noqa: E402

WORKERS = {"allreduce": "gpu_worker", "step": "gpu_worker", "jax": "gpu_jax_worker"}
SIZES = (4 << 10, 1 << 20, 16 << 20, 100 << 20)
MODELS = ("resnet50", "gpt")
EACH = {"allreduce": tuple(map(str, SIZES)), "step": MODELS, "jax": ()}
WAYS = {
    "allreduce": ("khorovod", "backend", "staged", "gloo", "nccl"),
    "step": ("khorovod", "buckets", "kept", "backend", "gloo", "nccl", "alone"),
    "jax": ("khorovod", "nccl", "alone"),
}
LIMIT_S = 150
Row = dict[str, Any]


def run(way: str, ranks: int, what: str, *arguments: str, **more: str) -> list[Row]:
    """All ranks of one way; of what they measured, the slowest rank's."""
    port = str(free_port())
    ours = of_ranks(ranks)
    processes = []
    for rank in range(ranks):
        env = os.environ | ours[rank] | more
        env |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "MASTER_ADDR": LOCALHOST}
        env |= {"MASTER_PORT": port, "NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "2"}
        env |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        worker = Path(__file__).parent / "benchkit" / f"{WORKERS[what]}.py"
        command = [sys.executable, str(worker), way, what, *arguments]
        processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    outputs = [("", "")] * ranks
    try:
        outputs = [process.communicate(timeout=LIMIT_S) for process in processes]
    except subprocess.TimeoutExpired:
        print(f"{way} at {ranks} ranks did not end within {LIMIT_S} s", file=sys.stderr)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        if process.returncode:
            print(f"{way}: {errors[-2000:]}", file=sys.stderr)
    by_rank = [[json.loads(line) for line in out.splitlines() if line.startswith("{")] for out, _ in outputs]
    return [max(same, key=lambda row: float(row["median_s"])) for same in zip(*by_rank, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--only", choices=tuple(WAYS))
    every = list(dict.fromkeys(way for ways in WAYS.values() for way in ways))
    parser.add_argument("--ways", nargs="+", choices=every, default=every)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    wanted = [options.only] if options.only else [what for what in WAYS if what != "jax" or _jax_has_cuda()]
    rows: list[Row] = []
    for ranks in options.ranks:
        for what in wanted:
            for way in (way for way in WAYS[what] if way in options.ways):
                more = {"HOROVOD_GPU_TRANSPORT": "staged"} if way == "staged" else {}
                measured = run("khorovod" if way == "staged" else way, ranks, what, *EACH[what], **more)
                if not measured:
                    print(f"{what:9} {ranks} ranks  {way:9} does not run here", flush=True)
                for row in measured:
                    row["way"] = way
                    rows.append(row)
                    _show(row)
    if options.results:
        options.results.write_text("".join(json.dumps(row) + "\n" for row in [_about(), *rows]))


def _show(row: Row) -> None:
    size = f"{row['bytes']:>10} B" if "bytes" in row else f"{row['model']:>12}"
    more = f"{row['in_a_row_s'] * 1e6:10.0f} us in a row" if "in_a_row_s" in row else ""
    print(
        f"{row['what']:9} {size} {row['ranks']} ranks  {row['way']:9} {row['median_s'] * 1e6:10.0f} us {more}",
        flush=True,
    )


def _jax_has_cuda() -> bool:
    return any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))


def _about() -> Row:
    import torch

    today = datetime.now(tz=timezone.utc).date().isoformat()
    return {"device": torch.cuda.get_device_name(0), "torch": torch.__version__, "date": today}


if __name__ == "__main__":
    main()
