# SPDX-License-Identifier: Apache-2.0
"""An elastic job from its options: limits, discovery, rendezvous and ElasticJob put together."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from horovod.common import settings
from horovod.common.rendezvous.protocol import make_secret
from horovod.common.rendezvous.server import Server
from horovod.common.settings_table import MOST_RANKS
from horovod.runner.allocation import Allocation
from horovod.runner.elastic.job import ElasticJob, ElasticSpec
from horovod.runner.elastic.mail import Mail
from horovod.runner.elastic.polling import Polling, find_hosts, require_local
from horovod.runner.elastic.vocabulary import Discovered, Limits, Ready
from horovod.runner.elastic.workers import Program
from horovod.runner.hosts import plan_hosts
from horovod.runner.job import JobResult
from horovod.runner.limits import check_local_processes, check_number, enough_descriptors
from horovod.runner.output import OutputOptions
from horovod.runner.processes import ProcessTree
from horovod.runner.user_output import UserOutput
from horovod.runner.worker_environment import (
    base_environment,
    flag_environment,
    interface_environment,
    rendezvous_environment,
)

_LOOPBACK = "127.0.0.1"
_PLACE = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")


def run_elastic_job(
    options: dict[str, Any],
    command: Sequence[str],
    tree: ProcessTree,
    output: UserOutput,
    output_options: OutputOptions,
    allocation: Allocation | None,
    *,
    extra_env: Mapping[str, str] | None = None,
    on_server: Callable[[Server], None] | None = None,
    after: Callable[[Server, JobResult], None] | None = None,
) -> JobResult:
    """Run `command` in as many workers as there may be; the same as run_job does for a fixed number."""
    script = options.get("host_discovery_script")
    find = partial(find_hosts, script, options.get("slots")) if script is not None else None
    set_aside = allocation.hosts if allocation is not None else ()
    hosts = find() if find is not None else {host.hostname: host.slots for host in plan_hosts(options, set_aside)}
    require_local(hosts)
    limits = limits_of(options, hosts)
    check_local_processes(limits.max_num_proc if find is None else max(limits.num_proc, 1))
    base = base_environment(os.environ)
    common = interface_environment(options.get("nics") or [], base)
    secret = make_secret()
    with ExitStack() as stack:
        stack.enter_context(
            enough_descriptors(limits.max_num_proc if find is None else 64, files=output_options.directory is not None)
        )
        mail = stack.enter_context(closing(Mail()))
        server = stack.enter_context(
            Server(
                _LOOPBACK,
                secret=secret,
                on_ready=lambda birth, lost: mail.put(Ready(birth, lost)),
                on_slow_meeting=output.say,
            )
        )
        if on_server is not None:
            on_server(server)
        env = {
            **{name: value for name, value in base.items() if name not in {f"HOROVOD_{word}" for word in _PLACE}},
            **flag_environment(options),
            **common,
            **rendezvous_environment(_LOOPBACK, server.port, secret),
            **(extra_env or {}),
        }
        spec = ElasticSpec(Program(command, env), output_options, limits, hosts, verbose=bool(options.get("verbose")))
        if find is not None:
            stack.enter_context(Polling(find, lambda found: mail.put(Discovered(found)), output.say))
        result = ElasticJob(spec, server, tree, output, mail).run()
        if after is not None:
            after(server, result)
    return result


def limits_of(options: Mapping[str, Any], hosts: Mapping[str, int]) -> Limits:
    """ValueError if they contradict each other."""
    fixed = options.get("host_discovery_script") is None
    num_proc = options["num_proc"]
    low = options.get("min_num_proc") or num_proc
    high = options.get("max_num_proc") or (max(num_proc, sum(hosts.values())) if fixed else MOST_RANKS)
    if not low <= num_proc <= high:
        raise ValueError(f"--min-np {low}, -np {num_proc} and --max-np {high} must be in ascending order")
    check_number(high, "--max-np (max_num_proc)")
    timeout = options.get("elastic_timeout")
    if timeout is None:
        timeout = settings.value_of("HOROVOD_ELASTIC_TIMEOUT", os.environ)
    cooldown = options.get("cooldown_range")
    return Limits(
        num_proc=num_proc,
        min_num_proc=low,
        max_num_proc=high,
        timeout_s=float(timeout if timeout is not None else 600),
        reset_limit=options.get("reset_limit"),
        cooldown=(float(cooldown[0]), float(cooldown[1])) if cooldown is not None else None,
        fixed_hosts=fixed,
    )
