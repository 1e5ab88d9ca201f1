# SPDX-License-Identifier: Apache-2.0
"""Hosts that the launcher finds inside a Kubeflow pod."""

import pytest

from horovod.launcher.start.hosts import HostInfo
from horovod.launcher.start.kubernetes import default_hosts, default_hosts_option, discovered

LAUNCHER = {"K_MPI_JOB_ROLE": "launcher"}
HOSTS = [HostInfo("pi-worker-0.pi-worker.ml.svc", 4), HostInfo("pi-worker-1.pi-worker.ml.svc", 4)]


def hosts_of(tmp_path, environ, **files):
    for name, text in files.items():
        path = tmp_path / name.replace("__", ".")
        path.write_text(text)
        path.chmod(0o755)
    return default_hosts(environ, str(tmp_path))


@pytest.mark.parametrize("notation", [" slots=", ":"], ids=["open-mpi", "mpich"])
def test_hostfile_of_the_mpi_operator(tmp_path, notation):
    text = "".join(f"{host.hostname}{notation}{host.slots}\n" for host in HOSTS)
    assert hosts_of(tmp_path, LAUNCHER, hostfile=text) == HOSTS


@pytest.mark.parametrize(
    "variable", ["OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile", "HYDRA_HOST_FILE"]
)
def test_a_launcher_that_says_so_only_by_its_hostfile(tmp_path, variable):
    """Kubeflow Trainer and the first version of the MPI Operator set only the variable of a hostfile."""
    environ = {variable: str(tmp_path / "hostfile")}
    assert hosts_of(tmp_path, environ, hostfile="job-node-0-0.job slots=2\n") == [HostInfo("job-node-0-0.job", 2)]


@pytest.mark.parametrize(
    "environ", [{}, {"K_MPI_JOB_ROLE": "worker"}, {"OMPI_MCA_orte_default_hostfile": "/home/me/hosts"}]
)
def test_elsewhere_a_file_of_that_name_means_nothing(tmp_path, environ):
    assert hosts_of(tmp_path, environ, hostfile="a slots=1\n") is None


def test_a_launcher_without_hosts(tmp_path):
    assert hosts_of(tmp_path, LAUNCHER) is None
    assert default_hosts_option(LAUNCHER, str(tmp_path)) is None


def test_in_the_notation_of_a_flag(tmp_path):
    hosts_of(tmp_path, LAUNCHER, hostfile="a slots=2\nb slots=1\n")
    assert default_hosts_option(LAUNCHER, str(tmp_path)) == "a:2,b:1"


def test_discover_hosts_where_there_is_no_hostfile(tmp_path):
    script = "#!/bin/sh\necho a.svc\necho b.svc:1\n"
    environ = {**LAUNCHER, "OMPI_MCA_orte_set_default_slots": "3"}
    assert hosts_of(tmp_path, environ, discover_hosts__sh=script) == [HostInfo("a.svc", 3), HostInfo("b.svc", 1)]


def test_the_hostfile_goes_before_discover_hosts(tmp_path):
    found = hosts_of(tmp_path, LAUNCHER, hostfile="a slots=1\nb slots=1\n", discover_hosts__sh="#!/bin/sh\necho a\n")
    assert [host.hostname for host in found] == ["a", "b"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("#!/bin/sh\n", "names no host"),
        ("#!/bin/sh\necho 'a;b'\n", "Invalid host"),
        ("#!/bin/sh\necho broken >&2; exit 3\n", "exit code 3: broken"),
    ],
)
def test_scripts_that_are_of_no_use(tmp_path, script, message):
    with pytest.raises(ValueError, match=message):
        hosts_of(tmp_path, LAUNCHER, discover_hosts__sh=script)


def test_a_hostfile_that_is_of_no_use(tmp_path):
    with pytest.raises(ValueError, match="hostfile:1: expected"):
        hosts_of(tmp_path, LAUNCHER, hostfile="a slots=many\n")
    with pytest.raises(ValueError, match="names no host"):
        hosts_of(tmp_path, LAUNCHER, hostfile="\n# later\n")


@pytest.mark.parametrize("slots", ["0", "many", "-1", "²"])
def test_slots_that_are_not_a_number(tmp_path, slots):
    environ = {**LAUNCHER, "I_MPI_PERHOST": slots}
    with pytest.raises(ValueError, match="slots of a worker"):
        hosts_of(tmp_path, environ, discover_hosts__sh="#!/bin/sh\necho a\n")


def test_discovered_hosts_that_are_named_twice_add_up():
    assert discovered("a:1\n\n  a:2 # again\nb\n", 4, "script") == [HostInfo("a", 3), HostInfo("b", 4)]
