# SPDX-License-Identifier: Apache-2.0
"""Run of a job from its options, fixed or elastic, with restarts if --max-restarts allows them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod.launcher.output.user_output import UserOutput
from horovod.launcher.start.assembly import JobRequest, allocation_of
from horovod.launcher.start.processes import ProcessTree
from horovod.launcher.start.restarts import RESTART_COUNT_VARIABLE, run_with_restarts
from horovod.launcher.start.worker_environment import number_of, overruled_settings, shows_warnings

if TYPE_CHECKING:
    from horovod.common.rendezvous.server import Server
    from horovod.launcher.start.job import JobResult


def run_job(request: JobRequest, tree: ProcessTree, output: UserOutput) -> JobResult:
    """Run the command in all workers, and again after a failure if --max-restarts allows it."""

    def once(in_tree: ProcessTree, count: int, is_last: Callable[[JobResult], bool]) -> JobResult:
        def collect_last(server: Server, result: JobResult) -> None:
            if is_last(result):
                request.collect(server, result)

        env = {**request.extra_env, RESTART_COUNT_VARIABLE: str(count)}
        return _run_once(replace(request, extra_env=env, after=collect_last), in_tree, output)

    if shows_warnings(request.options):
        for line in overruled_settings(os.environ, request.options):
            output.say(line)
    return run_with_restarts(int(number_of(request.options, "HOROVOD_MAX_RESTARTS")), once, tree, output)


def _run_once(request: JobRequest, tree: ProcessTree, output: UserOutput) -> JobResult:
    allocation = allocation_of(request.options)
    if request.options.is_elastic:
        from horovod.launcher.elastic.running import run_elastic_job

        return run_elastic_job(request, tree, output, allocation)
    from horovod.launcher.start.fixed import run_fixed_job

    return run_fixed_job(request, tree, output, allocation)
