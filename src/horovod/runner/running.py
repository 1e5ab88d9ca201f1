# SPDX-License-Identifier: Apache-2.0
"""A job from its options: hosts opened, rendezvous, environment and Job put together."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from horovod.common import settings
from horovod.common.joining.interfaces import interface_names
from horovod.common.rendezvous.protocol import make_secret
from horovod.common.rendezvous.server import Server
from horovod.common.torchrun_variables import free_port
from horovod.runner.allocation import Allocation, find_allocation
from horovod.runner.hosts import SIMULATE_VARIABLE, HostInfo, SlotInfo, get_host_assignments, is_local, plan_hosts
from horovod.runner.job import Job, JobResult, JobSpec
from horovod.runner.leave_reports import LeaveReports
from horovod.runner.limits import check_local_processes, enough_descriptors
from horovod.runner.output import OutputOptions, wants_colour, wants_tags
from horovod.runner.processes import ProcessTree
from horovod.runner.progress import start_progress
from horovod.runner.restarts import RESTART_COUNT_VARIABLE, run_with_restarts
from horovod.runner.scarcity import say_if_cores_of_hosts_are_few, say_what_is_scarce
from horovod.runner.user_output import UserOutput
from horovod.runner.worker_environment import (
    address_environment,
    base_environment,
    flag_environment,
    interface_environment,
    number_of,
    overruled_settings,
    rendezvous_environment,
    shows_warnings,
)

if TYPE_CHECKING:
    from horovod.runner.placement import Placer
    from horovod.runner.remote.opening import OpenHosts

_LOOPBACK = "127.0.0.1"
_READY_LIMIT_S = 10.0


@dataclass(frozen=True)
class Site:
    """Where a job runs: who starts its workers, the launcher's address, and what each host's workers must know.

    `main`: an address and a free port of rank 0's host, for torch's store.
    """

    placer: Placer
    address: str
    main: tuple[str, int]
    host_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    opened: OpenHosts | None = None


def run_job(
    options: dict[str, Any],
    command: Sequence[str],
    tree: ProcessTree,
    output: UserOutput,
    *,
    extra_env: Mapping[str, str] | None = None,
    on_server: Callable[[Server], None] | None = None,
    after: Callable[[Server, JobResult], None] | None = None,
) -> JobResult:
    """Run `command` once for each rank, and again if --max-restarts allows it.

    `on_server` sees the rendezvous before they start, `after` once they have ended for good.
    """

    def once(in_tree: ProcessTree, count: int, is_last: Callable[[JobResult], bool]) -> JobResult:
        return _run_once(
            options,
            command,
            in_tree,
            output,
            extra_env={**(extra_env or {}), RESTART_COUNT_VARIABLE: str(count)},
            on_server=on_server,
            after=lambda server, result: after(server, result) if after is not None and is_last(result) else None,
        )

    if shows_warnings(options):
        for line in overruled_settings(os.environ, options):
            output.say(line)
    return run_with_restarts(int(number_of(options, "HOROVOD_MAX_RESTARTS")), once, tree, output)


def _run_once(
    options: dict[str, Any],
    command: Sequence[str],
    tree: ProcessTree,
    output: UserOutput,
    *,
    extra_env: Mapping[str, str],
    on_server: Callable[[Server], None] | None,
    after: Callable[[Server, JobResult], None],
) -> JobResult:
    """One run of the job: its own rendezvous, secret and processes."""
    allocation = allocation_of(options)
    if is_elastic(options):
        from horovod.runner.elastic.running import run_elastic_job

        shown = _output_options(options, options["num_proc"])
        return run_elastic_job(
            options, command, tree, output, shown, allocation, extra_env=extra_env, on_server=on_server, after=after
        )
    hosts = plan_hosts(options, allocation.hosts if allocation is not None else ())
    slots = get_host_assignments(hosts, options["num_proc"])
    here = started_here(_used(slots), allocation)
    ranks_here = sum(host.slots for host in here)
    check_local_processes(ranks_here)
    say_what_is_scarce(options, ranks_here, max((host.slots for host in here), default=0), output)
    base = base_environment(os.environ)
    secret, reports = make_secret(), LeaveReports()
    with (
        enough_descriptors(len(slots), files=options.get("output_filename") is not None),
        _site(slots, here, options, base, tree, output, allocation) as site,
        Server(site.address, secret=secret, on_slow_meeting=output.say, on_report=reports.add) as server,
    ):
        if on_server is not None:
            on_server(server)
        env = {
            **base,
            **flag_environment(options),
            **rendezvous_environment(site.address, server.port, secret),
            **extra_env,
        }
        _send_environment(site, env)
        spec = JobSpec(
            command=command,
            slots=slots,
            env=env,
            host_env=site.host_env,
            main=site.main,
            output=_output_options(options, len(slots)),
            verbose=bool(options.get("verbose")),
        )
        with start_progress(server, len(slots), output):
            result = Job(spec, server, site.placer, output, reports).run()
        after(server, result)
    return result


def is_elastic(options: Mapping[str, Any]) -> bool:
    return options.get("min_num_proc") is not None or options.get("host_discovery_script") is not None


@contextmanager
def _site(
    slots: Sequence[SlotInfo],
    here: Sequence[HostInfo],
    options: Mapping[str, Any],
    base: Mapping[str, str],
    tree: ProcessTree,
    output: UserOutput,
    allocation: Allocation | None,
) -> Iterator[Site]:
    """This machine alone if all hosts are names of it."""
    elsewhere = [host.hostname for host in _used(slots) if host not in here]
    if not elsewhere:
        common = interface_environment(options.get("nics") or [], base)
        yield Site(tree, _LOOPBACK, (_LOOPBACK, free_port()), {host.hostname: common for host in here})
        return
    from horovod.runner.placement import Placement
    from horovod.runner.remote.opening import LAUNCHER, open_hosts

    interfaces = options.get("nics") or interface_names(base.get("HOROVOD_GLOO_IFACE", ""))
    commands = agent_commands(elsewhere, options, base, allocation)
    opened = open_hosts(commands, interfaces, start_limit_s(options), has_local_ranks=bool(here))
    ranks = {host.hostname: host.slots for host in _used(slots)}
    say_if_cores_of_hosts_are_few(options, ranks, {h.name: h.facts for h in opened.remote.hosts.values()}, output)
    with closing(opened.remote), closing(Placement(tree, opened.remote, dict(enumerate(_names(slots))))) as placement:
        chosen = {host.hostname: opened.choices[LAUNCHER] for host in here}
        chosen |= {name: opened.choices[name] for name in elsewhere}
        if options.get("verbose"):
            for name, choice in chosen.items():
                address = choice.address
                output.say(f"host {name}: address {address.text} on {address.interface} ({choice.reason})")
        host_env = {name: address_environment(choice.address, base) for name, choice in chosen.items()}
        first = slots[0].hostname
        port = opened.remote.hosts[first].facts["port"] if first in elsewhere else free_port()
        main = chosen[first].address.text, int(port)
        yield Site(placement, opened.choices[LAUNCHER].address.text, main, host_env, opened)


def _used(slots: Sequence[SlotInfo]) -> list[HostInfo]:
    return [HostInfo(slot.hostname, slot.local_size) for slot in slots if slot.local_rank == 0]


def _names(slots: Sequence[SlotInfo]) -> list[str]:
    return [slot.hostname for slot in slots]


def started_here(used: Sequence[HostInfo], allocation: Allocation | None) -> list[HostInfo]:
    """The hosts whose workers this process starts itself: those that are this machine.

    In a Slurm job this node gets an agent by srun as all others do, for then it has the same share of the node. If it
    is the only one, a launcher that Slurm itself has started there has that share, and passes it on.
    """
    local = [host for host in used if is_local(host.hostname)]
    if allocation is None or allocation.source != "Slurm" or settings.value_of(SIMULATE_VARIABLE, os.environ):
        return local
    if len(local) == len(used) == 1 and (os.environ.get("SLURMD_NODENAME") or shutil.which("srun") is None):
        return local
    set_aside = {host.hostname for host in allocation.hosts}
    return [host for host in local if host.hostname not in set_aside]


def allocation_of(options: Mapping[str, Any]) -> Allocation | None:
    """What a batch system has set aside, unless the user names hosts."""
    if options.get("hosts") is not None or options.get("hostfile") is not None:
        return None
    return find_allocation(os.environ)


def agent_commands(
    hosts: Sequence[str], options: Mapping[str, Any], environ: Mapping[str, str], allocation: Allocation | None
) -> dict[str, list[str]]:
    """By host, what starts its agent."""
    from horovod.runner.remote.command import SSH_VARIABLE, Reaching, agent_command, blaunch_command, ssh_command

    if allocation is not None and allocation.source == "LSF":
        return {host: blaunch_command(host, sys.executable, environ) for host in hosts}
    if allocation is not None:
        from horovod.runner.remote.slurm import gpus_to_ask_for, srun_command

        gpus = gpus_to_ask_for(environ)
        return {host: srun_command(host, agent_command(sys.executable), environ, gpus) for host in hosts}
    ssh = str(settings.value_of(SSH_VARIABLE, environ))
    reaching = Reaching(ssh, options.get("ssh_port"), options.get("ssh_identity_file"))
    return {host: ssh_command(host, reaching, sys.executable, environ) for host in hosts}


def start_limit_s(options: Mapping[str, Any]) -> float:
    """--start-timeout, or what stands for it."""
    given = options.get("start_timeout")
    return float(given if given is not None else settings.value_of("HOROVOD_START_TIMEOUT", os.environ) or 0)


def _send_environment(site: Site, env: Mapping[str, str]) -> None:
    """To every agent, through the connection that it has: the secret is on no command line."""
    if site.opened is None:
        return
    from horovod.runner.remote.environment import that_travel
    from horovod.runner.remote.host import State
    from horovod.runner.remote.opening import HostsError

    remote = site.opened.remote
    for name in remote.hosts:
        remote.begin(name, that_travel({**env, **site.host_env[name]}), os.getcwd())
    remote.wait(lambda host: host.state is State.READY, _READY_LIMIT_S)
    failed = [host for host in remote.hosts.values() if host.state is not State.READY]
    if failed:
        lines = [f"{host.name}: {host.problem or 'no answer'}" for host in failed]
        raise HostsError("these hosts cannot start workers:\n  " + "\n  ".join(lines))


def _output_options(options: Mapping[str, Any], ranks: int) -> OutputOptions:
    return OutputOptions(
        size=ranks,
        directory=options.get("output_filename"),
        timestamps=bool(options.get("prefix_output_with_timestamp")),
        colour=wants_colour(),
        tags=wants_tags(options.get("tag")),
        fold_tracebacks=not options.get("verbose"),
    )
