# SPDX-License-Identifier: Apache-2.0
"""The mpirun command line of horovodrun --mpi."""

import os
import sys

import pytest

from horovod.common.own_programs import module_arguments
from horovod.launcher.launch import parse_args
from horovod.launcher.options import JobOptions
from horovod.launcher.start import mpi_command as mpi_command_module
from horovod.launcher.start.hosts import HostInfo
from horovod.launcher.start.mpi_command import mpi_command, mpirun_words, worker_environment

HOSTS = [HostInfo("a", 2), HostInfo("b", 1)]
ROOT = ["--allow-run-as-root"] * (os.geteuid() == 0)
ENVIRONMENT = {"MODEL": "big", "PATH": "/bin", "_HOROVOD_SECRET_KEY": "abc", "HOME": "/root"}


def made(implementation, **options):
    return mpi_command(implementation, HOSTS, JobOptions.of(options), ["python", "train.py"], ENVIRONMENT)


def test_open_mpi_gets_names_of_variables_and_no_values():
    words, extra = made("Open MPI")
    exported = ["-x", "MODEL", "-x", "PATH", "-x", "_HOROVOD_SECRET_KEY"]
    usual = ["--bind-to", "none", "--map-by", "slot"]
    assert words == ["mpirun", *ROOT, "-np", "3", "-H", "a:2,b:1", *usual, *exported, "python", "train.py"]
    assert extra == {}


def test_flags_become_those_of_open_mpi():
    words, _ = made(
        "Open MPI",
        ssh_port=2222,
        ssh_identity_file="my key",
        nics=["eth0", "ib0"],
        binding_args="--bind-to core",
        mpi_args="-mca pml 'ob1'",
    )
    text = " ".join(words)
    assert "--bind-to core -mca plm_rsh_args -p 2222 -i 'my key' -mca btl_tcp_if_include eth0,ib0" in text
    assert words[-5:] == ["-mca", "pml", "ob1", "python", "train.py"]


@pytest.mark.parametrize("implementation", ["MPICH", "Intel MPI"])
def test_hydra(implementation):
    words, extra = made(implementation, ssh_port=2222, nics=["eth0"], mpi_args="-v")
    assert words[:8] == ["mpirun", "-np", "3", "-hosts", "a:2,b:1", "-bind-to", "none", "-genvall"]
    assert words[8:] == ["-iface", "eth0", "-v", "python", "train.py"]
    assert extra == {"HYDRA_LAUNCHER_EXTRA_ARGS": "-p 2222"}


@pytest.mark.parametrize("implementation", ["Open MPI", "MPICH"])
def test_flags_about_output_are_for_a_program_that_becomes_the_rank(implementation):
    plain, _ = made(implementation)
    assert made(implementation, tag="auto")[0] == made(implementation, tag="never")[0] == plain
    flags = {"tag": "always", "prefix_output_with_timestamp": True, "output_filename": "out"}
    words, _ = made(implementation, **flags)
    assert words[: len(plain) - 2] == plain[:-2]
    given = ["--tags", "--timestamps", "--directory", os.path.abspath("out"), "--", "python", "train.py"]
    assert words[len(plain) - 2 :] == [sys.executable, *module_arguments("horovod.launcher.start.mpi_rank"), *given]


@pytest.mark.parametrize("listed", ["2,3", ""])
@pytest.mark.parametrize(
    ("implementation", "hosts", "keeps"),
    [
        ("Open MPI", "localhost:2", True),
        ("Open MPI", "localhost:1,far.invalid:1", True),  # Open MPI sends only the variables that -x names
        ("MPICH", "localhost:2", True),
        ("MPICH", "localhost:1,far.invalid:1", False),
    ],
)
def test_gpus_of_the_launcher_are_those_of_its_own_ranks(monkeypatch, implementation, hosts, keeps, listed):
    monkeypatch.setattr(mpi_command_module, "installed_mpi", lambda environ: implementation)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    words, environment = mpirun_words(
        JobOptions.of(vars(parse_args(["--mpi", "-np", "2", "-H", hosts]))), ["python", "train.py"]
    )
    assert environment.get("CUDA_VISIBLE_DEVICES") == (listed if keeps else None)
    assert "CUDA_VISIBLE_DEVICES" not in words
    assert ("-x" in words) == (implementation == "Open MPI")


def test_spectrum_mpi_has_a_flag_for_tcp():
    assert "-tcp" in made("Spectrum MPI", tcp=True)[0]
    assert "-tcp" not in made("Open MPI", tcp=True)[0]


def test_a_rank_that_starts_a_job_keeps_its_own_place_and_rendezvous(monkeypatch):
    for name in ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"):
        monkeypatch.setenv(name, "3")
    assert not [name for name in worker_environment(JobOptions()) if name.startswith(("HOROVOD_RANK", "HOROVOD_SIZE"))]
    assert "HOROVOD_GLOO_RENDEZVOUS_ADDR" not in worker_environment(JobOptions())
