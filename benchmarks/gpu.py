# SPDX-License-Identifier: Apache-2.0
"""Several ranks that share one GPU: allreduce and training steps beside Gloo and NCCL over sockets, in the same run.

    python benchmarks/gpu.py [--ranks 2 4] [--only allreduce|step] [--results FILE]

NCCL refuses to share a GPU; a different NCCL_HOSTID for each rank makes it take the others for other hosts.
"""

from __future__ import annotations

import argparse
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

WORKER = Path(__file__).parent / "benchkit" / "gpu_worker.py"
SIZES = (4 << 10, 1 << 20, 16 << 20, 100 << 20)
MODELS = ("resnet50", "gpt")
LIMIT_S = 150
Row = dict[str, Any]


def run(way: str, ranks: int, *arguments: str, **more: str) -> list[Row]:
    """All ranks of one way; of what they measured, the slowest rank's."""
    port = str(free_port())
    ours = of_ranks(ranks)
    processes = []
    for rank in range(ranks):
        env = os.environ | ours[rank] | more
        env |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "MASTER_ADDR": LOCALHOST}
        env |= {"MASTER_PORT": port, "NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "2"}
        command = [sys.executable, str(WORKER), way, *arguments]
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
    parser.add_argument("--only", choices=("allreduce", "step"))
    parser.add_argument("--ways", nargs="+", default=["khorovod", "staged", "gloo", "nccl", "alone"])
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    for ranks in options.ranks:
        for what, each in (("allreduce", list(map(str, SIZES))), ("step", list(MODELS))):
            if options.only not in (None, what):
                continue
            for way in options.ways:
                if (what == "allreduce" and way == "alone") or (what == "step" and way == "staged"):
                    continue
                more = {"HOROVOD_GPU_TRANSPORT": "staged"} if way == "staged" else {}
                for row in run("khorovod" if way == "staged" else way, ranks, what, *each, **more):
                    row["way"] = way
                    rows.append(row)
                    size = f"{row['bytes']:>10} B" if what == "allreduce" else f"{row['model']:>12}"
                    more_s = f"{row['in_a_row_s'] * 1e6:10.0f} us in a row" if "in_a_row_s" in row else ""
                    print(
                        f"{what:9} {size} {ranks} ranks  {way:9} {row['median_s'] * 1e6:10.0f} us {more_s}", flush=True
                    )
    if options.results:
        options.results.write_text("".join(json.dumps(row) + "\n" for row in [_about(), *rows]))


def _about() -> Row:
    import torch

    today = datetime.now(tz=timezone.utc).date().isoformat()
    return {"device": torch.cuda.get_device_name(0), "torch": torch.__version__, "date": today}


if __name__ == "__main__":
    main()
