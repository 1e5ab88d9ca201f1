# SPDX-License-Identifier: Apache-2.0
"""Time from the command line to the first collective of the last rank, with horovodrun, torchrun and mpirun.

The floor is a start without launcher and collective. Launches take turns.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from testkit.launcher import HOROVODRUN
from testkit.processes import Group, wait_for_all

from benchkit.ledger import Sample
from benchkit.libraries import Mpi, Mpich, OpenMpi
from benchkit.parts.bench import OURS, Bench
from benchkit.units import time_text

_RANKS = 2
_LIMIT_S = 120

# Each rank writes the time of its first result; the last of these times counts.
_TELL = "open(sys.argv[1] + str(rank), 'w').write(str(time.time()))"
_NUMPY = f"""
import sys, time, numpy, horovod.numpy as hvd
hvd.init(); hvd.allreduce(numpy.ones(4)); rank = hvd.rank(); {_TELL}"""
_TORCH = f"""
import sys, time, torch, horovod.torch as hvd
hvd.init(); hvd.allreduce(torch.ones(4)); rank = hvd.rank(); {_TELL}"""
_GLOO = f"""
import sys, time, torch, torch.distributed as dist
dist.init_process_group('gloo'); dist.all_reduce(torch.ones(4)); rank = dist.get_rank(); {_TELL}
dist.barrier(); dist.destroy_process_group()"""  # otherwise Gloo may abort a rank whose peer has ended
_MPI = f"""
import sys, time, numpy; from mpi4py import MPI; world = MPI.COMM_WORLD
world.Allreduce(MPI.IN_PLACE, numpy.ones(4)); rank = world.rank; {_TELL}"""
_ALONE = "import os, sys, time, {module}; rank = os.getpid(); " + _TELL

_HOROVODRUN = (*HOROVODRUN, "-np", str(_RANKS))
_TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone", "--nproc-per-node", "2")


@dataclass(frozen=True)
class Way:
    """Way to launch ranks. If `launcher` is empty, each rank is started directly."""

    case: str
    name: str
    launcher: tuple[str, ...]
    program: str
    python: str = sys.executable
    variables: tuple[tuple[str, str], ...] = ()


def measure_launch(bench: Bench) -> None:
    ways = [way for way in _ways(bench) if _works(bench, way)]  # also fills the page cache and writes byte code
    times: dict[Way, list[list[float]]] = {way: [] for way in ways}
    turns = 4 if bench.quick else 12
    for turn in range(turns):
        bench.say(f"launch: turn {turn + 1} of {turns}, {len(ways)} launches")
        for way in ways if turn % 2 == 0 else ways[::-1]:
            times[way].append([_launch_once(way)])
    for case in ("numpy", "torch"):
        samples = [Sample(way.name, "", times[way]) for way in ways if way.case == case]
        records = bench.ledger.add("launch", {"program": case, "ranks": _RANKS}, samples, [OURS])
        found = "  ".join(f"{record['way']} {time_text(record['median'])}" for record in records)
        bench.say(f"launch to first collective, {case}: {found}")


def _ways(bench: Bench) -> list[Way]:
    ways = [
        Way("numpy", OURS, _HOROVODRUN, _NUMPY),
        Way("numpy", "floor", (), _ALONE.format(module="numpy")),
        Way("torch", OURS, _HOROVODRUN, _TORCH),
        Way("torch", "torchrun", _TORCHRUN, _GLOO),
        Way("torch", "floor", (), _ALONE.format(module="torch")),
    ]
    mpis: tuple[Mpi, ...] = (
        OpenMpi("openmpi", _RANKS, [], "shm", bench.openmpi_python),
        Mpich("mpich", _RANKS, [], "shm", bench.mpich_python),
    )
    for mpi in mpis:
        reason = mpi.unavailable()
        if reason is None:
            launcher = (mpi.mpiexec() or "", *mpi.flags())
            ways.append(Way("numpy", mpi.name, launcher, _MPI, mpi.python, tuple(mpi.variables().items())))
        else:
            bench.say(f"{mpi.name} is left out: {reason}")
        mpi.stop()
    return ways


def _works(bench: Bench, way: Way) -> bool:
    try:
        _launch_once(way)
    except RuntimeError as error:
        bench.say(f"launch: {way.name} ({way.case}) is left out: {error}")
        return False
    return True


def _launch_once(way: Way) -> float:
    """Return the seconds from the start to the last rank's first result."""
    with tempfile.TemporaryDirectory(prefix="bench-launch-") as folder:
        command = [*way.launcher, way.python, "-c", way.program, f"{folder}/"]
        started = time.time()
        env = dict(way.variables) | {"OMP_NUM_THREADS": "1"}
        processes = [Group(command, env) for _ in range(1 if way.launcher else _RANKS)]
        try:
            failed = any(wait_for_all(processes, _LIMIT_S))
            printed = "".join(process.printed() for process in processes)
        except AssertionError as error:
            raise RuntimeError(f"{way.name}: {error}") from None
        finally:
            for process in processes:
                process.end()
        told = [float(path.read_text()) for path in Path(folder).iterdir()]
        if len(told) != _RANKS or failed:
            raise RuntimeError(f"failed:\n{printed[-2000:]}")
        return max(told) - started
