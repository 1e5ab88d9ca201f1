# SPDX-License-Identifier: Apache-2.0
"""One run of a job with a fixed number of ranks: open hosts, start the rendezvous, and run the Job."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from horovod.common.rendezvous.protocol import make_secret
from horovod.common.rendezvous.server import Server
from horovod.common.torchrun_variables import free_port
from horovod.launcher.options import JobOptions
from horovod.launcher.output.user_output import UserOutput
from horovod.launcher.start.allocation import Allocation
from horovod.launcher.start.assembly import (
    LOOPBACK,
    JobRequest,
    agent_commands,
    check_this_machine,
    interfaces_of,
    output_options,
    start_limit_s,
    started_here,
)
from horovod.launcher.start.hosts import HostInfo, SlotInfo, get_host_assignments, plan_hosts
from horovod.launcher.start.job import Job, JobResult, JobSpec
from horovod.launcher.start.leave_reports import LeaveReports
from horovod.launcher.start.limits import enough_descriptors
from horovod.launcher.start.processes import ProcessTree
from horovod.launcher.start.progress import start_progress
from horovod.launcher.start.scarcity import say_if_cores_of_hosts_are_few
from horovod.launcher.start.worker_environment import address_environment, base_environment, interface_environment

if TYPE_CHECKING:
    from horovod.launcher.remote.opening import OpenHosts
    from horovod.launcher.start.placement import Placer

_READY_LIMIT_S = 10.0


@dataclass(frozen=True)
class Site:
    """Hosts of a job: the placer of its workers, the launcher's address, and the variables of each host's workers.

    `main` is an address and a free port of rank 0's host, for PyTorch's store.
    """

    placer: Placer
    address: str
    main: tuple[str, int]
    host_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    opened: OpenHosts | None = None


def run_fixed_job(
    request: JobRequest, tree: ProcessTree, output: UserOutput, allocation: Allocation | None
) -> JobResult:
    """Run the command once for each rank, with a rendezvous, secret and processes for this run only."""
    options = request.options
    hosts = plan_hosts(options, allocation.hosts if allocation is not None else ())
    slots = get_host_assignments(hosts, options.num_proc)
    here = started_here(_used(slots), allocation)
    ranks_here = sum(host.slots for host in here)
    check_this_machine(options, ranks_here, max((host.slots for host in here), default=0), output)
    base = base_environment(os.environ)
    secret, reports = make_secret(), LeaveReports()
    with (
        enough_descriptors(len(slots), files=options.output_filename is not None),
        _site(slots, here, options, base, tree, output, allocation) as site,
        Server(site.address, secret=secret, on_slow_meeting=output.say, on_report=reports.add) as server,
    ):
        request.offer(server)
        env = request.environment(base, site.address, server.port, secret)
        _send_environment(site, env)
        spec = JobSpec(
            command=request.command,
            slots=slots,
            env=env,
            host_env=site.host_env,
            main=site.main,
            output=output_options(options, len(slots)),
            verbose=options.verbose,
        )
        with start_progress(server, len(slots), output):
            result = Job(spec, server, site.placer, output, reports).run()
        request.collect(server, result)
    return result


@contextmanager
def _site(
    slots: Sequence[SlotInfo],
    here: Sequence[HostInfo],
    options: JobOptions,
    base: Mapping[str, str],
    tree: ProcessTree,
    output: UserOutput,
    allocation: Allocation | None,
) -> Iterator[Site]:
    """Yield the site of a job. It is this machine alone if all hosts are names of it."""
    elsewhere = [host.hostname for host in _used(slots) if host not in here]
    if not elsewhere:
        common = interface_environment(options.nics, base)
        yield Site(tree, LOOPBACK, (LOOPBACK, free_port()), {host.hostname: common for host in here})
        return
    from horovod.launcher.remote.opening import LAUNCHER, open_hosts
    from horovod.launcher.start.placement import Placement

    commands = agent_commands(elsewhere, options, base, allocation)
    opened = open_hosts(commands, interfaces_of(options, base), start_limit_s(options), has_local_ranks=bool(here))
    ranks = {host.hostname: host.slots for host in _used(slots)}
    say_if_cores_of_hosts_are_few(options, ranks, {h.name: h.facts for h in opened.remote.hosts.values()}, output)
    with closing(opened.remote), closing(Placement(tree, opened.remote, dict(enumerate(_names(slots))))) as placement:
        chosen = {host.hostname: opened.choices[LAUNCHER] for host in here}
        chosen |= {name: opened.choices[name] for name in elsewhere}
        if options.verbose:
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


def _send_environment(site: Site, env: Mapping[str, str]) -> None:
    """Send each agent its workers' environment through its connection, so that no command line contains the secret."""
    if site.opened is None:
        return
    from horovod.launcher.remote.environment import that_travel
    from horovod.launcher.remote.host import State
    from horovod.launcher.remote.opening import HostsError

    remote = site.opened.remote
    for name in remote.hosts:
        remote.begin(name, that_travel({**env, **site.host_env[name]}), os.getcwd())
    remote.wait(lambda host: host.state is State.READY, _READY_LIMIT_S)
    failed = [host for host in remote.hosts.values() if host.state is not State.READY]
    if failed:
        lines = [f"{host.name}: {host.problem or 'no answer'}" for host in failed]
        raise HostsError("these hosts cannot start workers:\n  " + "\n  ".join(lines))
