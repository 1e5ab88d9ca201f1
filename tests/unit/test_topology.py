# SPDX-License-Identifier: Apache-2.0
"""A process's rank assignment from the variables of each launcher, and the address of the rendezvous."""

import base64

import pytest

from horovod.common import settings, topology
from horovod.common.topology import Topology
from horovod.common.torchrun_variables import MARK

SECRET = base64.b64encode(b"s" * 32).decode()


def numbers(found: Topology) -> tuple[int, ...]:
    return (found.rank, found.size, found.local_rank, found.local_size, found.cross_rank, found.cross_size)


SLURM = {
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2",
}
LAUNCHERS = [
    ("alone", {}, (0, 1, 0, 1, 0, 1)),
    (
        "launcher",
        {
            "HOROVOD_RANK": "3",
            "HOROVOD_SIZE": "5",
            "HOROVOD_LOCAL_RANK": "1",
            "HOROVOD_LOCAL_SIZE": "2",
            "HOROVOD_CROSS_RANK": "1",
            "HOROVOD_CROSS_SIZE": "2",
        },
        (3, 5, 1, 2, 1, 2),
    ),
    ("bare variables", {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}, (1, 2, 0, 1, 1, 2)),
    (
        "Open MPI",
        {
            "OMPI_COMM_WORLD_RANK": "5",
            "OMPI_COMM_WORLD_SIZE": "8",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
        },
        (5, 8, 1, 4, 1, 2),
    ),
    (
        "PMI",
        {"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "3"},
        (2, 3, 2, 3, 0, 1),
    ),
    (
        "Slurm",
        {
            "SLURM_PROCID": "6",
            "SLURM_STEP_NUM_TASKS": "7",
            "SLURM_LOCALID": "0",
            "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
            "SLURM_NODEID": "3",
        },
        (6, 7, 0, 1, 6, 7),
    ),
    # A Python process in sbatch without srun is not a parallel step, whatever the allocation contains.
    ("sbatch without srun", {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}, (0, 1, 0, 1, 0, 1)),
]


@pytest.mark.parametrize(("environ", "expected"), [case[1:] for case in LAUNCHERS], ids=[case[0] for case in LAUNCHERS])
def test_discover(environ: dict[str, str], expected: tuple[int, ...]) -> None:
    assert numbers(topology.discover(environ)) == expected


TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x",
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
}
OURS = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (TORCHRUN, "torchrun"),
        (TORCHRUN | SLURM, "torchrun"),  # started by srun torchrun
        (TORCHRUN | OURS | {MARK: "RANK=0"}, "torchrun"),  # started by horovodrun torchrun
        (TORCHRUN | OURS, "HOROVOD_* variables"),  # the user set the variables
        ({name: TORCHRUN[name] for name in TORCHRUN if name != "TORCHELASTIC_RUN_ID"}, "no launcher"),
    ],
)
def test_who_started_torchrun_is_overruled_by_it(environ: dict[str, str], expected: str) -> None:
    found = topology.discover(environ)
    assert found.source == expected
    assert (numbers(found) == (2, 4, 0, 2, 1, 2)) == (expected == "torchrun")


def test_torchruns_with_unequal_numbers_of_ranks() -> None:
    assert not topology.discover(TORCHRUN | {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "1"}).cross_given


def test_launcher_wins_over_mpi_and_names_the_host() -> None:
    environ = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1", "HOROVOD_HOSTNAME": "h", "PMI_RANK": "1", "PMI_SIZE": "2"}
    found = topology.discover(environ)
    assert (found.size, found.host) == (1, "h")


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"HOROVOD_RANK": "0"}, "go together"),
        ({"HOROVOD_RANK": "2", "HOROVOD_SIZE": "2"}, "rank 2 must be at least 0 and below size 2"),
        ({"HOROVOD_RANK": "x", "HOROVOD_SIZE": "2"}, "HOROVOD_RANK='x' is not valid: expected an integer from 0"),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "0"}, "HOROVOD_SIZE='0' is not valid: expected an integer from 1"),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": str(2**31)}, "HOROVOD_SIZE='2147483648' is not valid"),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "0"}, "HOROVOD_LOCAL_SIZE go together"),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_CROSS_SIZE": "2"}, "HOROVOD_CROSS_SIZE go together"),
        (
            {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "3"},
            "cross_size 3 exceeds size 2",
        ),
        ({"PMI_RANK": "1_0", "PMI_SIZE": "20"}, "PMI_RANK='1_0' is not valid"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "9" * 5000}, "OMPI_COMM_WORLD_SIZE='999"),
        ({"HOROVOD_HOSTNAME": "a\udcff"}, "HOROVOD_HOSTNAME='a.udcff' is not valid"),
        (SLURM | {"SLURMD_NODENAME": "a\nb"}, "SLURMD_NODENAME='a.nb' is not valid"),
        (SLURM | {"SLURM_NODEID": "one"}, "SLURM_NODEID='one' is not valid"),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x"}, "SLURM_STEP_TASKS_PER_NODE='2.x' is not a list"),
        (
            {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "4"},
            "local_size 4 exceeds size 2",
        ),
    ],
)
def test_contradictions_are_refused(environ: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        topology.discover(environ)


def test_slurm_list_of_tasks() -> None:
    assert [topology.slurm_tasks_on_node("4,2(x2),1", node) for node in range(4)] == [4, 2, 2, 1]
    with pytest.raises(ValueError, match="SLURM_NODEID 4"):
        topology.slurm_tasks_on_node("4,2(x2),1", 4)
    assert topology.slurm_tasks_on_node("4,2(x999999999),1", 999_999_999) == 2


@pytest.mark.parametrize("local_given", [True, False])
def test_uneven_hosts_are_understood_after_meeting(local_given: bool) -> None:
    hosts = ["a", "a", "b", "c", "c"]
    given = [0, 1, 0, 0, 1] if local_given else [0] * 5
    found = []
    for rank, host in enumerate(hosts):
        before = Topology(rank, 5, given[rank], host=host, local_given=local_given, cross_given=False)
        found.append(topology.after_meeting(before, hosts, given))
    assert [place.local_rank for place in found] == [0, 1, 0, 0, 1]
    assert [(place.cross_rank, place.cross_size) for place in found] == [(0, 3), (0, 2), (1, 3), (2, 3), (1, 2)]
    if not local_given:
        assert [place.local_size for place in found] == [2, 2, 1, 2, 2]


def test_what_the_launcher_gave_is_kept() -> None:
    given = Topology(1, 2, 0, 1, 1, 2, host="a")
    assert topology.after_meeting(given, ["a", "a"], [0, 0]) == given


def test_rendezvous_from_variables() -> None:
    environ = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "4000",
        "_HOROVOD_SECRET_KEY": SECRET,
    }
    place = topology.rendezvous(Topology(size=2), settings.load(environ), environ)
    assert (place.address, place.port, place.secret) == ("10.0.0.1", 4000, b"s" * 32)


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"_HOROVOD_SECRET_KEY": SECRET}, "set HOROVOD_GLOO_RENDEZVOUS_ADDR"),
        ({"HOROVOD_GLOO_RENDEZVOUS_ADDR": "a", "HOROVOD_GLOO_RENDEZVOUS_PORT": "-1"}, "no rendezvous is known"),
        ({"HOROVOD_GLOO_RENDEZVOUS_ADDR": "a", "HOROVOD_GLOO_RENDEZVOUS_PORT": "1"}, "set _HOROVOD_SECRET_KEY"),
        (
            {
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": "a",
                "HOROVOD_GLOO_RENDEZVOUS_PORT": "1",
                "_HOROVOD_SECRET_KEY": "c2hvcnQ=",
            },
            "holds 5 bytes",
        ),
        (
            {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "a", "HOROVOD_GLOO_RENDEZVOUS_PORT": "1", "_HOROVOD_SECRET_KEY": "?"},
            "_HOROVOD_SECRET_KEY is not valid base64",
        ),
        (
            {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "a", "HOROVOD_GLOO_RENDEZVOUS_PORT": "1", "_HOROVOD_SECRET_KEY": "\u00e9"},
            "_HOROVOD_SECRET_KEY is not valid base64",
        ),
        (
            {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "a" * 64, "HOROVOD_GLOO_RENDEZVOUS_PORT": "1"},
            "HOROVOD_GLOO_RENDEZVOUS_ADDR='a{64}' is not the name or address of a host",
        ),
    ],
)
def test_missing_rendezvous_says_what_to_set(environ: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        topology.rendezvous(Topology(size=2), settings.load(environ), environ)


def test_homogeneous() -> None:
    assert topology.is_homogeneous(["a", "b", "b", "a"])
    assert not topology.is_homogeneous(["a", "b", "b"])


@pytest.mark.parametrize(
    ("text", "place", "core"),
    [
        (None, Topology(1, 2, 1, 2), None),
        ("3", Topology(1, 2, 1, 2), 3),
        ("3", Topology(1, 2, local_given=False), 3),
        ("4, 6", Topology(1, 2, 1, 2), 6),
        ("4,6,8", Topology(3, 4, 1, 2), 6),
    ],
)
def test_the_engine_threads_core_goes_by_the_local_rank(text: str | None, place: Topology, core: int | None) -> None:
    loaded = settings.load({} if text is None else {"HOROVOD_THREAD_AFFINITY": text})
    assert topology.engine_core(place, loaded, {}) == core


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (Topology(2, 3, 2, 3, host="a"), r"HOROVOD_THREAD_AFFINITY='4,6' has 2 cores for 3 ranks on host 'a'"),
        (Topology(1, 2, source="PMI", local_given=False), r"PMI does not tell .* set HOROVOD_LOCAL_RANK"),
    ],
)
def test_cores_that_do_not_suit_the_ranks_are_refused(place: Topology, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        topology.engine_core(place, settings.load({"HOROVOD_THREAD_AFFINITY": "4,6"}), {})


@pytest.mark.parametrize("names", [("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")])
def test_process_groups_of_torch_go_by_the_launchers_local_rank(names: tuple[str, str]) -> None:
    loaded = settings.load({"HOROVOD_THREAD_AFFINITY": "4,6"})
    store = Topology(0, 1, source="the store", local_given=False)
    assert topology.engine_core(store, loaded, dict(zip(names, ("1", "2"), strict=True))) == 6
    with pytest.raises(ValueError, match="2 cores for 3 ranks"):
        topology.engine_core(store, loaded, dict(zip(names, ("1", "3"), strict=True)))
