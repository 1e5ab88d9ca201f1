# SPDX-License-Identifier: Apache-2.0
"""horovodrun --mpi: the mpirun command that starts a job, and its environment.

mpirun starts, signals and ends the ranks, and forwards their output, in its own way.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from horovod.common import place_variables
from horovod.common.rendezvous.protocol import make_secret
from horovod.common.topology import secret_variable
from horovod.launcher.options import JobOptions
from horovod.launcher.start.hosts import HostInfo, get_host_assignments, is_local, plan_hosts
from horovod.launcher.start.mpi_rank import wrapped
from horovod.launcher.start.mpi_run import installed_mpi
from horovod.launcher.start.worker_environment import (
    base_environment,
    flag_environment,
    names_devices,
    shared_gpus_notice,
    shows_warnings,
)

if TYPE_CHECKING:
    from horovod.launcher.output.user_output import UserOutput
    from horovod.launcher.start.job import JobResult
    from horovod.launcher.start.processes import ProcessTree

# Variables that belong to this process only or that mpirun sets itself.
_NOT_PASSED_ON = ("PWD", "SHLVL", "_", "HOME", "HOSTNAME", "TMPDIR", "XDG_RUNTIME_DIR")


def run_by_mpirun(options: JobOptions, command: Sequence[str], tree: ProcessTree, output: UserOutput) -> JobResult:
    """Run the command on all ranks. Raise ValueError if no known mpirun is installed."""
    from horovod.launcher.start.mpi_job import MpirunJob

    words, environment = mpirun_words(options, command)
    slots = get_host_assignments(plan_hosts(options), options.num_proc)
    notice = shared_gpus_notice(os.environ, max((it.local_size for it in slots if is_local(it.hostname)), default=0))
    if notice is not None and shows_warnings(options):
        output.say(notice)
    if options.verbose:
        output.say(shlex.join(words))
    return MpirunJob(tree, output).run(words, environment)


def mpirun_words(
    options: JobOptions, command: Sequence[str], extra_env: Mapping[str, str] | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return the command and its environment. Raise ValueError if no known mpirun is installed."""
    implementation = installed_mpi(os.environ)
    if implementation is None:
        raise ValueError(
            "--mpi needs mpirun of Open MPI, MPICH, Intel MPI or Spectrum MPI on PATH; without --mpi no MPI is needed"
        )
    slots = get_host_assignments(plan_hosts(options), options.num_proc)
    hosts = [HostInfo(slot.hostname, slot.local_size) for slot in slots if slot.local_rank == 0]
    environment = {**worker_environment(options), **(extra_env or {})}
    if is_hydra(implementation) and not all(is_local(host.hostname) for host in hosts):
        # MPICH's launcher sends all of mpirun's variables to all hosts, where these device lists would be wrong.
        environment = {name: value for name, value in environment.items() if not names_devices(name)}
    words, extra = mpi_command(implementation, hosts, options, command, environment)
    return words, {**environment, **extra}


def worker_environment(options: JobOptions) -> dict[str, str]:
    """Return the environment of ranks that another launcher starts, and of that launcher.

    A rank of a job may start a job itself, so the outer rank's place and rendezvous are removed.
    """
    inherited = base_environment(os.environ)
    if not inherited.keys().isdisjoint(place_variables.NAMES):
        outer = {*place_variables.NAMES, "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"}
        inherited = {name: value for name, value in inherited.items() if name not in outer}
    environment = {**inherited, **flag_environment(options), **_secret()}
    # The user asked for MPI, so it also moves tensors, unless HOROVOD_CPU_OPERATIONS says gloo.
    if environment.get("HOROVOD_CPU_OPERATIONS", "").lower() != "gloo":
        environment["HOROVOD_CPU_OPERATIONS"] = "mpi"
    if options.nics:
        environment["HOROVOD_GLOO_IFACE"] = options.nics[0]
        environment.setdefault("NCCL_SOCKET_IFNAME", ",".join(options.nics))
    return environment


def mpi_command(
    implementation: str,
    hosts: Sequence[HostInfo],
    options: JobOptions,
    command: Sequence[str],
    environment: Mapping[str, str],
) -> tuple[list[str], dict[str, str]]:
    """Return the words of the command, and variables for mpirun itself."""
    count = str(sum(host.slots for host in hosts))
    listed = ",".join(f"{host.hostname}:{host.slots}" for host in hosts)
    if is_hydra(implementation):
        words, extra = _for_hydra(count, listed, options)
    else:
        words, extra = _for_open_mpi(count, listed, options, environment), {}
        words += ["-tcp"] * bool(options.tcp and implementation == "Spectrum MPI")
    return ["mpirun", *words, *shlex.split(options.mpi_args or ""), *wrapped(command, options)], extra


def is_hydra(implementation: str) -> bool:
    return implementation in ("MPICH", "Intel MPI")


def _for_hydra(count: str, hosts: str, options: JobOptions) -> tuple[list[str], dict[str, str]]:
    # MPICH 5.0 loses some names of a long list of variables, so pass all variables with -genvall.
    words = ["-np", count, "-hosts", hosts, *_binding(options, ["-bind-to", "none"]), "-genvall"]
    if options.nics:
        words += ["-iface", options.nics[0]]
    ssh_words = _ssh_words(options)
    return words, {"HYDRA_LAUNCHER_EXTRA_ARGS": shlex.join(ssh_words)} if ssh_words else {}


def _for_open_mpi(count: str, hosts: str, options: JobOptions, environment: Mapping[str, str]) -> list[str]:
    words = ["--allow-run-as-root"] * (os.geteuid() == 0)
    words += ["-np", count, "-H", hosts, *_binding(options, ["--bind-to", "none", "--map-by", "slot"])]
    if ssh_words := _ssh_words(options):
        words += ["-mca", "plm_rsh_args", shlex.join(ssh_words)]
    if options.nics:
        words += ["-mca", "btl_tcp_if_include", ",".join(options.nics)]
    names = [name for name in sorted(environment) if name not in _NOT_PASSED_ON and not names_devices(name)]
    return [*words, *(word for name in names for word in ("-x", name))]


def _secret() -> dict[str, str]:
    """Return the secret with which the ranks find each other if mpirun gives the job no common name."""
    return secret_variable(make_secret())


def _binding(options: JobOptions, usual: list[str]) -> list[str]:
    return shlex.split(options.binding_args) if options.binding_args else usual


def _ssh_words(options: JobOptions) -> list[str]:
    words = []
    if options.ssh_port is not None:
        words += ["-p", str(options.ssh_port)]
    if options.ssh_identity_file is not None:
        words += ["-i", options.ssh_identity_file]
    return words
