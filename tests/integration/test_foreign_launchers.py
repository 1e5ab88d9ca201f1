# SPDX-License-Identifier: Apache-2.0
"""Jobs started by real mpirun and srun, and horovodrun inside a Slurm allocation."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from launcherkit import mpi, slurm
from launcherkit.slurm import Cluster
from testkit.launcher import HOROVODRUN, lines_by_rank
from testkit.needs import need
from testkit.processes import run

pytestmark = pytest.mark.timeout(120)

PROGRAM = """
import json, sys
import numpy as np
import horovod.numpy as hvd
for again in range(2):
    hvd.init()
    total = hvd.allreduce(np.full(3, hvd.rank() + 1), op=hvd.Sum, name="x")
    place = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
    hvd.shutdown()
sys.stdout.write(json.dumps([place, total.tolist(), "mpi4py.MPI" in sys.modules]) + "\\n")
"""


def started(command: Sequence[str], env: dict[str, str]) -> list[list[object]]:
    """Run a job; return what each rank wrote, by rank."""
    done = run(command, env, limit_s=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(json.loads(line) for line in done.stdout.splitlines())


def left_in(folder: Path) -> list[Path]:
    """Return the files in the private directory, which must exist because the job used it."""
    (private,) = folder.iterdir()
    assert private.stat().st_mode & 0o777 == 0o700
    return list(private.iterdir())


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_mpirun_starts_a_job_on_one_host(name: str, tmp_path: Path):
    library = mpi.install(name)
    env = library.environment() | {"XDG_RUNTIME_DIR": str(tmp_path)}
    # Start the ranks through a shell, as users' wrapper scripts do.
    words = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", PROGRAM]
    ranks = started([library.mpirun, "-np", "2", *words], env)
    assert ranks == [[[0, 2, 0, 2, 0, 1], [3, 3, 3], False], [[1, 2, 1, 2, 0, 1], [3, 3, 3], False]]
    assert left_in(tmp_path) == []


def test_mpirun_introduces_the_ranks_by_a_broadcast_if_asked(tmp_path: Path):
    library = mpi.install("openmpi")
    env = library.environment() | {"XDG_RUNTIME_DIR": str(tmp_path), "HOROVOD_RENDEZVOUS": "mpi"}
    ranks = started([library.mpirun, "-np", "2", sys.executable, "-c", PROGRAM], env)
    assert ranks == [[[0, 2, 0, 2, 0, 1], [3, 3, 3], True], [[1, 2, 1, 2, 0, 1], [3, 3, 3], True]]
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need(slurm.missing(), "scripts/system-packages")
    with slurm.cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


def test_srun_starts_a_job_on_one_host(cluster: Cluster, tmp_path: Path):
    env = cluster.environment | {"XDG_RUNTIME_DIR": str(tmp_path)}
    ranks = started(["srun", "-N1", "-n2", sys.executable, "-c", PROGRAM], env)
    assert [rank[:2] for rank in ranks] == [[[0, 2, 0, 2, 0, 1], [3, 3, 3]], [[1, 2, 1, 2, 0, 1], [3, 3, 3]]]
    assert left_in(tmp_path) == []


def test_srun_starts_a_job_on_several_hosts_through_a_shared_directory(cluster: Cluster, tmp_path: Path):
    env = cluster.environment | {"HOROVOD_SHARED_DIR": str(tmp_path)}
    ranks = started(["srun", "-N2", "-n4", "--overcommit", sys.executable, "-c", PROGRAM], env)
    assert [rank[0] for rank in ranks] == [
        [0, 4, 0, 2, 0, 2],
        [1, 4, 1, 2, 0, 2],
        [2, 4, 0, 2, 1, 2],
        [3, 4, 1, 2, 1, 2],
    ]
    assert all(rank[1] == [10, 10, 10] for rank in ranks)
    assert left_in(tmp_path) == []


def in_allocation(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    """Run horovodrun inside an allocation of two nodes with two tasks each."""
    salloc = ["salloc", "--quiet", "-N2", "-n4", "--overcommit"]
    return run([*salloc, *HOROVODRUN, *words], cluster.environment, limit_s=60)


@pytest.mark.parametrize("flags", [(), ("--min-np", "4")], ids=["static", "elastic"])
def test_horovodrun_uses_the_nodes_of_an_allocation(cluster: Cluster, flags: tuple[str, ...]):
    done = in_allocation(cluster, *flags, sys.executable, "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads(line) for _, (line,) in sorted(lines_by_rank(done.stdout).items())]
    assert [rank[0] for rank in ranks] == [
        [0, 4, 0, 2, 0, 2],
        [1, 4, 1, 2, 0, 2],
        [2, 4, 0, 2, 1, 2],
        [3, 4, 1, 2, 1, 2],
    ]
    assert all(rank[1] == [10, 10, 10] for rank in ranks)


def test_fewer_processes_than_slurm_has_set_aside_and_a_failure_by_name(cluster: Cluster, tmp_path: Path):
    # Rank 2 fails only after ranks 0 and 1 have reported their nodes.
    told = shlex.quote(str(tmp_path))
    script = f"""
echo $HOROVOD_HOSTNAME $SLURM_JOB_ID; touch {told}/$HOROVOD_RANK
test $HOROVOD_RANK = 2 || exec sleep 100
until test -e {told}/0 -a -e {told}/1; do sleep 0.05; done; exit 7
"""
    done = in_allocation(cluster, "-np", "3", "sh", "-c", script)
    assert done.returncode == 7
    assert f"(host {cluster.nodes[1]}, pid" in done.stderr
    assert "rank 2" in done.stderr
    jobs = {line for lines in lines_by_rank(done.stdout).values() for line in lines}
    assert {line.split()[0] for line in jobs} == set(cluster.nodes)
    assert len({line.split()[1] for line in jobs}) == 1


def test_doctor_looks_at_the_nodes_of_an_allocation(cluster: Cluster):
    hvd = [sys.executable, "-m", "horovod.tools.cli", "doctor", "--json"]
    done = run(["salloc", "--quiet", "-N2", "-n4", *hvd], cluster.environment)
    assert done.returncode == 0, done.stdout + done.stderr
    hosts = json.loads(done.stdout)["hosts"]
    assert {host["host"]: host["slots"] for host in hosts if host["slots"]} == dict.fromkeys(cluster.nodes, 2)
    assert all(host["address"] for host in hosts)


SHARE = """
import json, os, sys
def can_open(path):
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError as error:
        return error.strerror != "Operation not permitted"
    return True
variables = [os.environ.get(name) for name in ("SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES")]
cores = os.sched_getaffinity(0)
sys.stdout.write(json.dumps([*variables, len(cores), [can_open(path) for path in sys.argv[1:]]]) + "\\n")
"""


def shares_of_ranks(cluster: Cluster, start: Callable[[Sequence[str]], Sequence[str]], *flags: str) -> Any:
    """Return for each rank: node name, GPU numbers, number of cores, and which GPUs it can open.

    horovodrun runs under the host name of the first node, so that this node is the launcher's own machine.
    """
    need([] if os.geteuid() == 0 else ["root"], "a host's name is changed")
    launcher = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', cluster.nodes[0], *HOROVODRUN, *flags]
    program = [sys.executable, "-c", SHARE, *map(str, cluster.gpus)]
    elsewhere = {"CUDA_VISIBLE_DEVICES": "9"}  # GPUs of the submitting machine, which the job must not inherit
    done = run(start([*launcher, *program]), cluster.environment | elsewhere, limit_s=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for _, (line,) in sorted(lines_by_rank(done.stdout).items())]


def test_ranks_of_a_batch_script_have_the_gpus_and_cores_of_the_job_on_every_node(cluster: Cluster, tmp_path: Path):
    first, second = cluster.nodes
    half = [True, not cluster.has_cgroups]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def start(words: Sequence[str]) -> list[str]:
        script = f"exec > {pipe} 2>&1; {shlex.join(words)}"
        submit = ["sbatch", "--quiet", "-N2", "-n2", "--gres=gpu:1", "--output=/dev/null", "--wrap", script]
        return ["sh", "-c", f"{shlex.join(submit)} && cat {pipe}"]  # sbatch --wait would check only every ten seconds

    assert shares_of_ranks(cluster, start) == [[first, "0", 1, half], [second, "0", 1, half]]


def test_ranks_share_gpus_that_were_asked_for_by_task(cluster: Cluster):
    first, second = cluster.nodes
    shares = shares_of_ranks(cluster, lambda words: ["salloc", "--quiet", "-N2", "-n4", "--gpus-per-task=1", *words])
    assert shares == [[node, "0,1", 2, [True, True]] for node in (first, first, second, second)]


def test_ranks_on_the_one_node_of_a_step_have_what_the_step_has(cluster: Cluster):
    half = [True, not cluster.has_cgroups]
    shares = shares_of_ranks(cluster, lambda words: ["srun", "-N1", "-n1", "--gres=gpu:1", *words], "-np", "2")
    assert shares == [[cluster.nodes[0], "0", 1, half]] * 2
