# SPDX-License-Identifier: Apache-2.0
"""Assembly of an elastic job from its options: limits, discovery, hosts, rendezvous and ElasticJob."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod.common import place_variables, settings
from horovod.common.rendezvous.protocol import make_secret
from horovod.common.settings_table import MOST_RANKS
from horovod.launcher.elastic.driving import silence_limit_s, timeout_s
from horovod.launcher.elastic.host_book import Found, HostEvent
from horovod.launcher.elastic.hosts import NoAgents
from horovod.launcher.elastic.job import ElasticJob, ElasticSpec
from horovod.launcher.elastic.mail import Mail
from horovod.launcher.elastic.polling import Polling, Script
from horovod.launcher.elastic.rendezvous import elastic_server
from horovod.launcher.elastic.vocabulary import Event, Limits, Probe
from horovod.launcher.elastic.workers import Program
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
from horovod.launcher.start.hosts import HostInfo, plan_hosts
from horovod.launcher.start.job import JobResult
from horovod.launcher.start.limits import check_number, check_reset_limit, enough_descriptors
from horovod.launcher.start.placement import Placer
from horovod.launcher.start.processes import ProcessTree
from horovod.launcher.start.worker_environment import (
    address_environment,
    base_environment,
    interface_environment,
    number_of,
)

if TYPE_CHECKING:
    from horovod.launcher.elastic.agents import RemoteAgents


def run_elastic_job(
    request: JobRequest, tree: ProcessTree, output: UserOutput, allocation: Allocation | None
) -> JobResult:
    """Run the command in the workers of an elastic job, as many as its limits and hosts allow."""
    options, script = request.options, request.options.host_discovery_script
    find = Script(script, options.slots) if script is not None else None
    set_aside = allocation.hosts if allocation is not None else ()
    wanted = replace(options, num_proc=options.num_proc + spares_of(options))
    hosts = find() if find is not None else {host.hostname: host.slots for host in plan_hosts(wanted, set_aside)}
    limits = limits_of(options, hosts)
    found = _found(hosts, allocation)
    ranks_here = min(limits.max_num_proc + limits.spares, sum(hosts[host] for host in found.here))
    per_name = max((min(hosts[host], limits.max_num_proc) for host in found.here), default=0)
    check_this_machine(options, ranks_here, per_name, output)
    base = base_environment(os.environ)
    here = _Here(options, base, is_used=bool(found.here))
    secret = make_secret()
    with ExitStack() as stack:
        most = limits.max_num_proc + limits.spares if find is None else 64
        stack.enter_context(enough_descriptors(most, files=options.output_filename is not None))
        mail: Mail[Event | HostEvent] = stack.enter_context(closing(Mail()))
        host_of: dict[int, str] = {}
        placer: Placer = tree
        if find is not None or len(found.here) < len(hosts):
            placer = here.reach_others(found, limits, allocation, tree, host_of, stack)
        address = here.address or LOOPBACK
        server = stack.enter_context(elastic_server(address, secret, mail.put, output.say))
        request.offer(server)
        inherited = {name: value for name, value in base.items() if name not in place_variables.NAMES}
        env = request.environment(inherited, address, server.port, secret)
        if here.others is not None:
            here.others.begin(env, server.listen_too, mail.put)
        spec = ElasticSpec(
            Program(request.command, env, here.env_of),
            output_options(options, options.num_proc),
            limits,
            found,
            agents=here.others or NoAgents(),
            address_of=here.address_of,
            probe=here.prober(mail.put),
            verbose=options.verbose,
        )
        if find is not None:
            polling = Polling(
                find, lambda hosts: mail.put(here.seen(_found(hosts, allocation))), output.say, known=hosts
            )
            stack.enter_context(polling)
            stack.callback(find.stop)
            stack.callback(polling.report_no_more)
        result = ElasticJob(spec, server, placer, output, mail, host_of).run()
        request.collect(server, result)
    return result


def _found(hosts: dict[str, int], allocation: Allocation | None) -> Found:
    here = started_here([HostInfo(name, slots) for name, slots in hosts.items()], allocation)
    return Found(hosts, frozenset(host.hostname for host in here))


class _Here:
    """This machine as seen by the job: the agents of the other hosts, and the address at which they reach it."""

    def __init__(self, options: JobOptions, base: Mapping[str, str], *, is_used: bool) -> None:
        self._options = options
        self._base = base
        self.others: RemoteAgents | None = None
        if is_used:
            self.env_of("localhost")  # raises ValueError for interfaces that do not exist

    def reach_others(
        self,
        found: Found,
        limits: Limits,
        allocation: Allocation | None,
        tree: ProcessTree,
        host_of: dict[int, str],
        stack: ExitStack,
    ) -> Placer:
        """Start the agents of the other hosts.

        Raise HostsError if too few hosts can be used and no others will come.
        """
        from horovod.launcher.elastic.agents import Reaching, RemoteAgents
        from horovod.launcher.remote.hosts import RemoteHosts
        from horovod.launcher.remote.opening import HostsError
        from horovod.launcher.start.placement import Placement

        options, base = self._options, self._base
        reaching = Reaching(
            lambda names: agent_commands(names, options, base, allocation),
            interfaces_of(options, base),
            start_limit_s(options),
        )
        remote = stack.enter_context(closing(RemoteHosts({})))
        self.others = RemoteAgents(remote, reaching, has_local_ranks=bool(found.here))
        elsewhere = [host for host in found.hosts if host not in found.here]
        if elsewhere:
            self.others.reach(elsewhere)
        problems = self.others.problems
        usable = sum(slots for host, slots in found.hosts.items() if host not in problems)
        if problems and limits.fixed_hosts and usable < limits.num_proc:
            lines = [f"{host}: " + why.replace("\n", "\n    ") for host, why in problems.items()]
            count = f"{len(lines)} of {len(found.hosts)} hosts" if len(found.hosts) > 1 else "the host"
            raise HostsError(f"no agent could be started on {count}:\n  " + "\n  ".join(lines))
        return stack.enter_context(closing(Placement(tree, remote, host_of)))

    def seen(self, found: Found) -> Found:
        """Return `found`. If workers may run here, new hosts must be able to reach this machine from now on."""
        if self.others is not None and found.here:
            self.others.has_local_ranks = True
        return found

    @property
    def address(self) -> str | None:
        """Return this machine's address as other hosts see it, or None if there are no other hosts."""
        return self.others.launcher if self.others is not None else None

    def prober(self, notify: Callable[[Event], None]) -> Callable[[Probe], None] | None:
        """Return a function that lets hosts try to reach each other, or None if this machine is the only host."""
        if self.others is None:
            return None
        from horovod.launcher.elastic.cut_prober import CutProber

        others = self.others
        return CutProber(others.remote, lambda: others.choices, others.host_env, notify).begin

    def env_of(self, host: str) -> Mapping[str, str]:
        if self.others is not None and host in self.others.host_env:
            return self.others.host_env[host]
        choice = self.others.launcher_choice if self.others is not None else None
        if choice is not None:
            return address_environment(choice.address, self._base)
        return interface_environment(self._options.nics, self._base)

    def address_of(self, host: str) -> str | None:
        """Return the address for workers on this machine, which may have started before there were other hosts.

        Workers of other hosts know theirs already, so return None for them.
        """
        return None if self.others is not None and host in self.others.host_env else self.address


def limits_of(options: JobOptions, hosts: Mapping[str, int]) -> Limits:
    """Return the limits of an elastic job that begins on `hosts`. Raise ValueError if they contradict each other."""
    fixed = options.host_discovery_script is None
    num_proc, spares = options.num_proc, spares_of(options)
    low = options.min_num_proc or num_proc
    high = options.max_num_proc or (max(num_proc, sum(hosts.values()) - spares) if fixed else MOST_RANKS)
    if not low <= num_proc <= high:
        raise ValueError(f"--min-np {low}, -np {num_proc} and --max-np {high} must be in ascending order")
    check_number(high, "--max-np (max_num_proc)")
    check_reset_limit(options.reset_limit)
    return Limits(
        num_proc=num_proc,
        min_num_proc=low,
        max_num_proc=high,
        timeout_s=timeout_s(options.elastic_timeout, os.environ),
        reset_limit=options.reset_limit,
        cooldown=options.cooldown_range,
        fixed_hosts=fixed,
        spares=spares,
        progress_timeout_s=number_of(options, "HOROVOD_PROGRESS_TIMEOUT_SECONDS"),
        replace_stuck=bool(number_of(options, "HOROVOD_REPLACE_STUCK_WORKERS")),
        silence_s=silence_limit_s(os.environ),
        probe_every_s=float(settings.value_of("HOROVOD_CUT_PROBE_SECONDS", os.environ) or 10),
    )


def spares_of(options: JobOptions) -> int:
    return int(number_of(options, "HOROVOD_SPARES"))
