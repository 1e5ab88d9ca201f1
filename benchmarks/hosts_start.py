#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the time from horovodrun to the end of the first collective of a job on several hosts, over real ssh.

    sudo python benchmarks/hosts_start.py                       # 2 hosts with 2 ranks each
    sudo python benchmarks/hosts_start.py --hosts 16 --ranks 4 --rounds 1

Hosts are network namespaces with sshd. For comparison, in turns: Open MPI's mpirun starts these ranks over this ssh
(mpi4py); and the minimum of any launcher: one ssh, and one Python that imports NumPy, on each host at once.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from testkit.launcher import HOROVODRUN
from testkit.processes import run
from testkit.ssh import SshHosts, missing

_OURS = """
import numpy as np
import horovod.numpy as hvd
hvd.init()
assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == hvd.size()
"""
_MPI = """
import numpy as np
from mpi4py import MPI
total = np.ones(1)
MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, total)
assert total[0] == MPI.COMM_WORLD.size
"""
_LIMIT_S = 120


def main() -> int:
    options = parse()
    if absent := missing():
        print(f"missing here: {', '.join(absent)}", file=sys.stderr)
        return 2
    names = [f"h{number}" for number in range(options.hosts + 1)]  # the launcher runs on the first host
    with tempfile.TemporaryDirectory() as folder:
        hosts = SshHosts(names, Path(folder))
        try:
            ways = ways_to_start(hosts, names[1:], options.ranks, options.mpirun)
            times = {name: [timed(way) for _ in range(options.rounds)] for name, way in ways.items()}
        finally:
            hosts.close()
    print(
        f"{options.hosts} hosts with {options.ranks} ranks each, seconds (median of {options.rounds}; fastest, slowest)"
    )
    for name, found in times.items():
        print(f"  {name:<32} {median(found):6.2f}  ({min(found):.2f}, {max(found):.2f})")
    return 0


def ways_to_start(hosts: SshHosts, names: list[str], ranks: int, mpirun: str | None) -> dict[str, Callable[[], None]]:
    listed = ",".join(f"{name}:{ranks}" for name in names)
    ways = {
        "one ssh to each host": lambda: on_each_host(hosts, names, "true"),
        "Python and NumPy on each host": lambda: on_each_host(hosts, names, f"{sys.executable} -c 'import numpy'"),
        "khorovod": lambda: start(hosts, [*HOROVODRUN, "-H", listed, sys.executable, "-c", _OURS]),
    }
    if mpirun is not None:
        count = str(len(names) * ranks)
        flags = ["--allow-run-as-root", "--prtemca", "plm_ssh_agent", hosts.ssh, "--map-by", ":OVERSUBSCRIBE"]
        flags += ["-x", "PYTHONPATH", "-x", "LD_LIBRARY_PATH"]  # the paths of mpi4py and the MPI library
        command = [mpirun, *flags, "-np", count, "-H", listed, sys.executable, "-c", _MPI]
        ways["Open MPI"] = lambda: start(hosts, command)
    return ways


def on_each_host(hosts: SshHosts, names: list[str], command: str) -> None:
    launcher = hosts.inside("h0")
    started = [subprocess.Popen([*launcher, *hosts.ssh.split(), name, command]) for name in names]
    for process in started:
        if process.wait(_LIMIT_S) != 0:
            raise RuntimeError("ssh failed")


def start(hosts: SshHosts, command: list[str]) -> None:
    done = run([*hosts.inside("h0"), *command], {**os.environ, "HOROVOD_SSH_COMMAND": hosts.ssh}, _LIMIT_S)
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)


def timed(way: Callable[[], None]) -> float:
    begin = time.perf_counter()
    way()
    return time.perf_counter() - begin


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2, help="on each host")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mpirun", default=shutil.which("mpirun"), help="of Open MPI, with mpi4py (default: on PATH)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
