# SPDX-License-Identifier: Apache-2.0
"""How ranks started by other launchers find each other: the job's name, the rendezvous file, and all refusals."""

import base64
import json
import os
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from horovod.common import mpi_library, settings, topology
from horovod.common.exceptions import HorovodInitializationError
from horovod.common.joining import introduction, note
from horovod.common.joining.identity import job_identity
from horovod.common.rendezvous.client import RendezvousError

# The variables that the launchers really set, without those that this project does not read.
OPEN_MPI_5 = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-vm-31908@1",
    "PMIX_RANK": "1",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "9"}
MPICH_TWO_HOSTS = MPICH | {"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
SLURM = {
    "SLURM_CLUSTER_NAME": "test",
    "SLURM_JOB_ID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURMD_NODENAME": "n1",
}
SLURM_PMI2 = SLURM | {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_JOBID": "2.0"}


def identity(environ):
    return job_identity(topology.discover(environ), environ)


def rank(environ, number):
    names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
    local = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
    return environ | {name: str(number) for name in (*names, *local) if name in environ}


@pytest.mark.parametrize("environ", [OPEN_MPI_5, MPICH, SLURM, SLURM_PMI2], ids=["ompi", "mpich", "slurm", "pmi2"])
def test_all_ranks_of_a_job_give_it_the_same_name(environ):
    assert len(identity(environ)) == 32
    assert identity(rank(environ, 0)) == identity(rank(environ, 1))


@pytest.mark.parametrize(
    ("environ", "variable", "other"),
    [
        (OPEN_MPI_5, "PMIX_NAMESPACE", "prterun-vm-31909@1"),
        (SLURM, "SLURM_STEP_ID", "1"),
        (SLURM, "SLURM_JOB_ID", "3"),
        (SLURM, "SLURM_CLUSTER_NAME", "other"),
        (SLURM_PMI2, "PMI_JOBID", "2.1"),
    ],
)
def test_another_job_has_another_name(environ, variable, other):
    assert identity(environ) != identity(environ | {variable: other})


def test_mpirun_in_a_batch_script_is_not_mistaken_for_the_batch_step():
    batch = {"SLURM_JOB_ID": "2", "SLURM_STEP_ID": "0"}
    assert identity(MPICH | batch) == identity(MPICH | batch | {"SLURM_JOB_ID": "3"})


def test_slurm_names_the_host_since_several_nodes_may_share_one():
    assert topology.discover(SLURM).host == "n1"
    assert topology.discover(SLURM | {"HOROVOD_HOSTNAME": "mine"}).host == "mine"


def introduced(environ, timeout="20"):
    found = topology.discover(environ)
    return introduction.introduced(found, settings.load(environ | {"HOROVOD_GLOO_TIMEOUT_SECONDS": timeout}), environ)


def introduce(environ, timeout="20"):
    """Return the address of the rendezvous once this rank knows it."""
    with introduced(environ, timeout) as (place, _):
        return place


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """Yield an environment with an XDG_RUNTIME_DIR, in a process that does not know its rendezvous yet."""
    monkeypatch.setattr(introduction, "_known", None)
    yield {"XDG_RUNTIME_DIR": str(tmp_path)}
    while introduction._servers:
        introduction._servers.pop().stop()


def test_a_note_of_a_crashed_job_and_a_damaged_one_are_read_again_until_rank_0_has_replaced_them(runtime, monkeypatch):
    path = note.private_directory(note.runtime_base(runtime)) / identity(SLURM)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    stale = {"address": "127.0.0.1", "port": port, "secret": base64.b64encode(b"s" * 32).decode()}
    note.write(path, json.dumps(stale).encode())
    met = []
    follower = threading.Thread(target=lambda: met.append(introduce(SLURM | runtime, "20")))
    follower.start()
    note.write(path, b"{")
    monkeypatch.setattr(introduction, "_known", None)
    with introduced(rank(SLURM, 0) | runtime) as (place, _):
        follower.join(40)
        assert path.stat().st_mode & 0o777 == 0o600
    assert met == [place]
    assert not path.exists()


def test_without_rank_0_the_wait_is_bounded_and_names_the_file(runtime):
    with pytest.raises(RendezvousError, match=r"rank 0 has not left a usable note at .*/\.horovod-\d+/.* within 0.2 s"):
        introduce(SLURM | runtime, "0.2")


def test_without_a_name_for_the_job_the_start_is_refused_with_what_to_do(runtime, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(HorovodInitializationError) as refused:
        introduce(MPICH_TWO_HOSTS | runtime)
    for word in ("rank 1 of 2 (from PMI)", "horovodrun", "mpi4py", "HOROVOD_RENDEZVOUS=self", "_HOROVOD_SECRET_KEY"):
        assert word in str(refused.value)


def test_a_directory_that_others_can_enter_is_not_used(runtime, tmp_path):
    (tmp_path / f".horovod-{os.geteuid()}").mkdir(mode=0o777)
    (tmp_path / f".horovod-{os.geteuid()}").chmod(0o777)
    with pytest.raises(PermissionError, match=r"must be a directory of this user alone.*HOROVOD_SHARED_DIR"):
        introduce(SLURM | runtime)


def test_a_link_in_place_of_the_directory_or_the_note_is_not_followed(runtime, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (tmp_path / f".horovod-{os.geteuid()}").symlink_to(elsewhere)
    with pytest.raises(PermissionError, match="must be a directory of this user alone"):
        note.private_directory(tmp_path)
    (elsewhere / "target").write_bytes(b"secret")
    (elsewhere / "note").symlink_to(elsewhere / "target")
    with pytest.raises(OSError, match="symbolic link"):
        note.read(elsewhere / "note")
    note.write(elsewhere / "note", b"new")
    assert (elsewhere / "target").read_bytes() == b"secret"
    assert note.read(elsewhere / "note") == b"new"


def test_a_note_that_others_can_read_is_not_used(tmp_path):
    (tmp_path / "note").write_bytes(b"x")
    (tmp_path / "note").chmod(0o644)
    with pytest.raises(PermissionError, match="a file that only this user can access"):
        note.read(tmp_path / "note")
    assert note.read(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("environ", "mpi4py", "way"),
    [
        (OPEN_MPI_5, True, "file"),
        (MPICH_TWO_HOSTS, True, "mpi"),
        (MPICH_TWO_HOSTS, False, "file"),
        (MPICH_TWO_HOSTS | {"HOROVOD_SHARED_DIR": "/x"}, True, "file"),
        (OPEN_MPI_5 | {"HOROVOD_RENDEZVOUS": "mpi"}, False, "mpi"),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_LOCALID": "0"}, True, "file"),
    ],
)
def test_the_way_depends_only_on_what_all_ranks_see_alike(environ, mpi4py, way, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if mpi4py else None)
    assert introduction._way(topology.discover(environ), settings.load(environ), environ) == way


class Communicator:
    """Stand-in for rank 1's MPI communicator. `stuck` names the operation that never completes."""

    def __init__(self, stuck=""):
        self.begun, self._stuck = [], stuck

    def Ibcast(self, message, root):  # noqa: N802
        data = introduction._encode(PLACE)
        message[0][: len(data)] = data
        return self._begin("Ibcast")

    def Ibarrier(self):  # noqa: N802
        return self._begin("Ibarrier")

    def _begin(self, name):
        self.begun.append(name)
        return SimpleNamespace(Test=lambda: name != self._stuck)


PLACE = topology.Rendezvous("10.0.0.1", 4711, b"s" * 32)


@pytest.fixture
def broadcast(monkeypatch):
    monkeypatch.setattr(mpi_library, "_broken", False)
    monkeypatch.setattr(mpi_library, "load", lambda: SimpleNamespace(BYTE=None))
    given = topology.discover(OPEN_MPI_5), settings.load(OPEN_MPI_5), OPEN_MPI_5
    return lambda comm: introduction._broadcast(comm, *given, time.monotonic() + 0.1)


def test_a_broadcast_is_over_when_all_have_it(broadcast):
    """The rank that has received the broadcast waits in a barrier: some MPI libraries send only during MPI calls."""
    comm = Communicator()
    assert broadcast(comm) == PLACE
    assert comm.begun == ["Ibcast", "Ibarrier"]
    assert not mpi_library._broken


@pytest.mark.parametrize("stuck", ["Ibcast", "Ibarrier"])
def test_who_gives_a_broadcast_up_does_not_wait_for_mpi_at_its_end(broadcast, stuck):
    with pytest.raises(RendezvousError, match="did all ranks call hvd"):
        broadcast(Communicator(stuck))
    assert mpi_library._broken
