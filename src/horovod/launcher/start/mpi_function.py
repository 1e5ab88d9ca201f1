# SPDX-License-Identifier: Apache-2.0
"""horovod.run(use_mpi=True): mpirun starts the ranks, which exchange function and results with a rendezvous."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from horovod.common.joining.interfaces import LOOPBACK, interface_address, reachable_address
from horovod.common.rendezvous.protocol import make_secret
from horovod.common.rendezvous.server import Server
from horovod.launcher.options import JobOptions
from horovod.launcher.output.user_output import UserOutput
from horovod.launcher.run_task import error_key
from horovod.launcher.start.hosts import is_local, plan_hosts
from horovod.launcher.start.job import JobResult
from horovod.launcher.start.mpi_command import mpirun_words
from horovod.launcher.start.mpi_job import MpirunJob
from horovod.launcher.start.processes import ProcessTree
from horovod.launcher.start.worker_environment import rendezvous_environment


def run_function(
    options: JobOptions,
    command: Sequence[str],
    tree: ProcessTree,
    output: UserOutput,
    offer: Callable[[Server], None],
    collect: Callable[[Server, JobResult], None],
) -> JobResult:
    """Run the function on ranks that mpirun starts.

    Raises:
        RuntimeError: mpirun failed; the text begins with "mpirun failed".
        ValueError: No known mpirun is installed.
    """
    secret = make_secret()
    address = _own_address(options)
    with Server(address, secret=secret) as server:
        offer(server)
        words, env = mpirun_words(options, command, rendezvous_environment(address, server.port, secret))
        result = MpirunJob(tree, output).run(words, env)
        if result.exit_code != 0 and result.stop_signal is None:
            traces = (server.get(error_key(rank)) for rank in range(options.num_proc))
            trace = next((text.decode(errors="replace") for text in traces if text is not None), "")
            raise RuntimeError(f"mpirun failed with exit code {result.exit_code}\n{trace}".rstrip())
        collect(server, result)
    return result


def _own_address(options: JobOptions) -> str:
    if options.nics:
        return interface_address(",".join(options.nics))
    return LOOPBACK if all(is_local(host.hostname) for host in plan_hosts(options)) else reachable_address()
