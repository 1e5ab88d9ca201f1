# SPDX-License-Identifier: Apache-2.0
"""Parts of fixed and elastic jobs: the request, the hosts' agents, and the workers' environment."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from horovod.common import settings
from horovod.common.joining.interfaces import interface_names
from horovod.launcher.options import JobOptions
from horovod.launcher.output.forwarding import OutputOptions, wants_colour, wants_tags
from horovod.launcher.output.user_output import UserOutput
from horovod.launcher.start.allocation import Allocation, find_allocation
from horovod.launcher.start.hosts import SIMULATE_VARIABLE, HostInfo, is_local
from horovod.launcher.start.limits import check_local_processes
from horovod.launcher.start.scarcity import say_what_is_scarce
from horovod.launcher.start.worker_environment import flag_environment, rendezvous_environment

if TYPE_CHECKING:
    from horovod.common.rendezvous.server import Server
    from horovod.launcher.start.job import JobResult

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class JobRequest:
    """Request for one job, fixed or elastic.

    Args:
        options: The parsed options.
        command: The command of each rank.
        extra_env: Additional variables for the workers.
        on_server: Called with the rendezvous before workers start.
        after: Called with the rendezvous and the result once all workers have ended and no restart follows.
    """

    options: JobOptions
    command: Sequence[str]
    extra_env: Mapping[str, str] = field(default_factory=dict)
    on_server: Callable[[Server], None] | None = None
    after: Callable[[Server, JobResult], None] | None = None

    def offer(self, server: Server) -> None:
        if self.on_server is not None:
            self.on_server(server)

    def collect(self, server: Server, result: JobResult) -> None:
        if self.after is not None:
            self.after(server, result)

    def environment(self, base: Mapping[str, str], address: str, port: int, secret: bytes) -> dict[str, str]:
        """Return the variables of all workers: `base`, the flags, the rendezvous at `address`, and `extra_env`."""
        return {
            **base,
            **flag_environment(self.options),
            **rendezvous_environment(address, port, secret),
            **self.extra_env,
        }


def check_this_machine(options: JobOptions, ranks: int, ranks_per_name: int, output: UserOutput) -> None:
    """Report what is scarce on this machine for its ranks. Raise ValueError if it cannot run as many processes.

    Args:
        options: The options, which may disable warnings.
        ranks: Number of ranks on this machine.
        ranks_per_name: Largest number of ranks under one host name of this machine.
        output: Where to print.
    """
    check_local_processes(ranks)
    say_what_is_scarce(options, ranks, ranks_per_name, output)


def output_options(options: JobOptions, ranks: int) -> OutputOptions:
    return OutputOptions(
        size=ranks,
        directory=options.output_filename,
        timestamps=options.prefix_output_with_timestamp,
        colour=wants_colour(),
        tags=wants_tags(options.tag),
        fold_tracebacks=not options.verbose,
    )


def interfaces_of(options: JobOptions, environ: Mapping[str, str]) -> list[str]:
    """Return the network interfaces of the flag, or those of the environment."""
    return list(options.nics) or interface_names(environ.get("HOROVOD_GLOO_IFACE", ""))


def allocation_of(options: JobOptions) -> Allocation | None:
    """Return the allocation of a batch system, or None if there is none or the user names hosts."""
    if options.names_hosts:
        return None
    return find_allocation(os.environ)


def started_here(used: Sequence[HostInfo], allocation: Allocation | None) -> list[HostInfo]:
    """Return the hosts whose workers this process starts itself, which are names of this machine.

    In a Slurm job this node also gets an agent by srun, so that it has the same share of its node as the other hosts.
    If it is the only node, a launcher that Slurm started there has that share already and starts the workers itself.
    """
    local = [host for host in used if is_local(host.hostname)]
    if allocation is None or allocation.source != "Slurm" or settings.value_of(SIMULATE_VARIABLE, os.environ):
        return local
    if len(local) == len(used) == 1 and (os.environ.get("SLURMD_NODENAME") or shutil.which("srun") is None):
        return local
    set_aside = {host.hostname for host in allocation.hosts}
    return [host for host in local if host.hostname not in set_aside]


def agent_commands(
    hosts: Sequence[str], options: JobOptions, environ: Mapping[str, str], allocation: Allocation | None
) -> dict[str, list[str]]:
    """Return the command that starts the agent of each host."""
    from horovod.launcher.remote.command import SSH_VARIABLE, Reaching, agent_command, blaunch_command, ssh_command

    if allocation is not None and allocation.source == "LSF":
        return {host: blaunch_command(host, sys.executable, environ) for host in hosts}
    if allocation is not None:
        from horovod.launcher.remote.slurm import gpus_to_ask_for, srun_command

        gpus = gpus_to_ask_for(environ)
        return {host: srun_command(host, agent_command(sys.executable), environ, gpus) for host in hosts}
    ssh = str(settings.value_of(SSH_VARIABLE, environ))
    reaching = Reaching(ssh, options.ssh_port, options.ssh_identity_file)
    return {host: ssh_command(host, reaching, sys.executable, environ) for host in hosts}


def start_limit_s(options: JobOptions) -> float:
    """Return --start-timeout, or its setting in the environment."""
    given = options.start_timeout
    return float(given if given is not None else settings.value_of("HOROVOD_START_TIMEOUT", os.environ) or 0)
