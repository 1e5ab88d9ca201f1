# SPDX-License-Identifier: Apache-2.0
"""A job whose workers all run on this machine: rendezvous, environment and Job put together."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horovod.common.rendezvous.protocol import make_secret
from horovod.common.rendezvous.server import Server
from horovod.common.torchrun_variables import free_port
from horovod.runner.hosts import get_host_assignments, plan_hosts
from horovod.runner.job import Job, JobResult, JobSpec
from horovod.runner.limits import enough_descriptors
from horovod.runner.output import OutputOptions, wants_colour, wants_tags
from horovod.runner.processes import ProcessTree
from horovod.runner.progress import start_progress
from horovod.runner.user_output import UserOutput
from horovod.runner.worker_environment import (
    base_environment,
    flag_environment,
    interface_environment,
    rendezvous_environment,
)

_ADDRESS = "127.0.0.1"


def run_locally(
    options: dict[str, Any],
    command: Sequence[str],
    tree: ProcessTree,
    output: UserOutput,
    *,
    extra_env: Mapping[str, str] | None = None,
    on_server: Callable[[Server], None] | None = None,
    after: Callable[[Server, JobResult], None] | None = None,
) -> JobResult:
    """Run `command` once for each rank; `on_server` sees the rendezvous before they start, `after` once they ended."""
    slots = get_host_assignments(plan_hosts(options), options["num_proc"])
    base = base_environment(os.environ)
    interfaces = interface_environment(options.get("nics") or [], base)
    secret = make_secret()

    with (
        enough_descriptors(len(slots), files=options.get("output_filename") is not None),
        Server(_ADDRESS, secret=secret, on_slow_meeting=output.say) as server,
    ):
        if on_server is not None:
            on_server(server)
        spec = JobSpec(
            command=command,
            slots=slots,
            env={
                **base,
                **flag_environment(options),
                **interfaces,
                **rendezvous_environment(_ADDRESS, server.port, secret),
                **(extra_env or {}),
            },
            output=OutputOptions(
                size=len(slots),
                directory=options.get("output_filename"),
                timestamps=bool(options.get("prefix_output_with_timestamp")),
                colour=wants_colour(),
                tags=wants_tags(options.get("tag")),
                fold_tracebacks=not options.get("verbose"),
            ),
            main=(_ADDRESS, free_port()),
            verbose=bool(options.get("verbose")),
        )
        with start_progress(server, len(slots), output):
            result = Job(spec, server, tree, output).run()
        if after is not None:
            after(server, result)
    return result
