# SPDX-License-Identifier: Apache-2.0
"""`hvd doctor -H`: results of the agents on a job's hosts, and what to change.

Pure functions derive the advice from the results; hosts_page.py formats it.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import horovod
from horovod.common.joining.interfaces import LOOPBACK, loopback_interface
from horovod.launcher.options import JobOptions
from horovod.launcher.remote.addresses import Choice
from horovod.launcher.remote.measuring import Way
from horovod.launcher.remote.opening import LAUNCHER
from horovod.launcher.remote.probing import Address
from horovod.launcher.remote.surveying import Survey, Surveyed, is_same_version, survey
from horovod.launcher.start.hosts import HostInfo, is_local, named_slots, plan_hosts
from horovod.tools import speed

# Limit for a clock's offset, because merged timelines and log times of several hosts rely on their clocks.
_LARGE_OFFSET_S = 0.1
# Limits for slow connections, relative to the median. Chance alone changes figures by half.
_SLOW_BANDWIDTH = 0.4
_SLOW_ROUND_TRIP = 4.0
_SMALL_ROUND_TRIP_S = 0.5e-3


@dataclass(frozen=True)
class HostsExamination:
    """Results for the hosts of a job. `slots` is by host, and 0 for this machine if it only launches."""

    slots: Mapping[str, int]
    survey: Survey

    @property
    def works(self) -> bool:
        """Return True if every host answers with the same version and all of them reach each other."""
        able = all(host.silence is None and is_same_version(host.facts) for host in self.survey.hosts.values())
        return able and not self.survey.problems and not any(way.problem for way in self.survey.ways.values())

    @property
    def advice(self) -> list[str]:
        silent = {name for name, host in self.survey.hosts.items() if host.silence is not None}
        ways = {pair: way for pair, way in self.survey.ways.items() if not silent.intersection(pair)}
        return [*_of_each_host(self), *self.survey.problems, *_of_ways(ways), *_of_machines(self)]


def options_of_job(options: JobOptions) -> JobOptions | None:
    """Return the options as horovodrun interprets them, or None if the job stays on this machine."""
    from horovod.launcher.start.assembly import allocation_of
    from horovod.launcher.start.kubernetes import default_hosts_option

    if options.names_hosts:
        return options
    named = default_hosts_option(os.environ)
    if named is not None:
        return replace(options, hosts=named)
    allocation = allocation_of(options)
    hosts = allocation.hosts if allocation is not None else ()
    return options if any(not is_local(host.hostname) for host in hosts) else None


def examine(options: JobOptions, say: Callable[[str], None] = lambda _: None) -> HostsExamination:
    """Examine the hosts in `options`, or those that a batch system has set aside.

    It uses hosts or hostfile, ssh_port, ssh_identity_file, nics and start_timeout.

    Raises:
        ValueError: The hosts cannot be used.
        OSError: The hosts cannot be used.
    """
    from horovod.launcher.remote.command import agent_command
    from horovod.launcher.start.assembly import (
        agent_commands,
        allocation_of,
        interfaces_of,
        start_limit_s,
        started_here,
    )
    from horovod.launcher.start.worker_environment import base_environment

    allocation = allocation_of(options)
    set_aside = allocation.hosts if allocation is not None else ()
    slots = named_slots(options.hosts, options.hostfile) or sum(host.slots for host in set_aside)
    hosts = plan_hosts(replace(options, num_proc=slots), set_aside)
    environ = base_environment(os.environ)
    here = started_here(hosts, allocation)
    elsewhere = [host.hostname for host in hosts if host not in here]
    hosts_and_launcher = _with_launcher(hosts, elsewhere)
    # Use an agent on this machine too, so that all hosts are examined in one way.
    commands = {host.hostname: agent_command(sys.executable) for host in hosts_and_launcher}
    commands |= agent_commands(elsewhere, options, environ, allocation)
    found = survey(
        commands,
        interfaces_of(options, environ),
        start_limit_s(options),
        without_ranks=[host.hostname for host in hosts_and_launcher if not host.slots],
        say=say,
    )
    shown = {host.hostname: host.slots for host in hosts_and_launcher}
    return HostsExamination(shown, found if elsewhere else _staying_here(found))


def _with_launcher(hosts: Sequence[HostInfo], elsewhere: Sequence[str]) -> list[HostInfo]:
    """Add this machine even if no ranks run on it, because all hosts must reach it."""
    launcher = [HostInfo(LAUNCHER, 0)] if len(elsewhere) == len(hosts) else []
    return [*launcher, *hosts]


def _staying_here(found: Survey) -> Survey:
    """Return the survey of a job on this machine alone, which does not use the network."""
    choice = Choice(Address(loopback_interface(), LOOPBACK), "all ranks are on this machine")
    return Survey({name: replace(one, choice=choice) for name, one in found.hosts.items()}, {}, [])


def _of_each_host(found: HostsExamination) -> Iterator[str]:
    for name, host in found.survey.hosts.items():
        if host.silence is not None:
            reason = [host.silence.reason, *host.silence.complaints][-1]
            yield f"{name}: {'; '.join([reason, *host.silence.advice])}"
        elif not is_same_version(host.facts):
            theirs, ours = host.facts.get("version"), horovod.__version__
            yield f"{name}: install khorovod {ours} there, or {theirs} here: a job needs the same version everywhere"
        else:
            yield from _of_host(name, found.slots[name], host)


def _of_host(name: str, slots: int, host: Surveyed) -> Iterator[str]:
    ours = ".".join(map(str, sys.version_info[:2]))
    theirs = ".".join(str(host.facts.get("python", "")).split(".")[:2])
    if theirs != ours:
        yield (
            f"{name}: Python {theirs} there, {ours} here: horovod.run() and what else sends functions need the same "
            "on all hosts"
        )
    cores, gpus = int(host.facts.get("cores", 0)), len(host.examination.get("gpus", ()))
    if gpus and slots > gpus:
        yield f"{name}: {slots} slots for {gpus} GPUs: -H {name}:{gpus} gives each rank one of its own"
    elif slots > cores > 0:
        yield f"{name}: {slots} slots on {cores} cores: ranks take the cores from each other; -H {name}:{cores}"
    offset = host.offset
    if offset is not None and abs(offset.seconds) - offset.error > _LARGE_OFFSET_S:
        way = "ahead of" if offset.seconds > 0 else "behind"
        yield f"{name}: its clock is {abs(offset.seconds):.3g} s {way} this machine's: run chrony or another NTP client"


def _of_ways(ways: Mapping[tuple[str, str], Way]) -> Iterator[str]:
    """Yield advice on connections that do not work or are much slower than most."""
    bandwidths = [way.bandwidth for way in ways.values() if way.bandwidth is not None]
    round_trips = [way.round_trip_s for way in ways.values() if way.round_trip_s is not None]
    for (start, end), way in ways.items():
        if way.problem:
            yield f"{start} to {end}: {way.problem}{_WHAT_TO_DO.get(way.problem, '')}"
            continue
        assert way.bandwidth is not None
        assert way.round_trip_s is not None
        usual, usual_s = statistics.median(bandwidths), statistics.median(round_trips)
        if way.bandwidth < _SLOW_BANDWIDTH * usual:
            yield (
                f"{start} to {end}: {speed.bandwidth_text(way.bandwidth)}, where {speed.bandwidth_text(usual)} is "
                "usual here: look at cable, port and speed of the interfaces (ethtool), and at what else uses them"
            )
        if way.round_trip_s > max(_SLOW_ROUND_TRIP * usual_s, _SMALL_ROUND_TRIP_S):
            yield (
                f"{start} to {end}: a round trip takes {speed.time_text(way.round_trip_s)}, where "
                f"{speed.time_text(usual_s)} is usual here: another network, or a busy host?"
            )


_WHAT_TO_DO = {
    "small packets arrive, large ones do not": ": the same MTU is needed on all interfaces and switches (ip link)",
}


def _of_machines(found: HostsExamination) -> list[str]:
    """Return the machine findings of all hosts, each once with the hosts that it concerns."""
    names: dict[str, list[str]] = {}
    for name, host in found.survey.hosts.items():
        for what, _, advice in host.examination.get("findings", ()):
            if advice and found.slots[name]:
                names.setdefault(f"{what}: {advice}", []).append(name)
    return [f"{', '.join(hosts)}: {text}" for text, hosts in names.items()]
