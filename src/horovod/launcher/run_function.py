# SPDX-License-Identifier: Apache-2.0
"""horovod.run: call a function on several processes and return what each of them returned."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from horovod.common.exceptions import HorovodDeprecationWarning
from horovod.launcher.start.stop_signals import dropping

if TYPE_CHECKING:
    from horovod.common.rendezvous.server import Server
    from horovod.launcher.options import JobOptions
    from horovod.launcher.output.user_output import UserOutput
    from horovod.launcher.start.job import JobResult
    from horovod.launcher.start.processes import ProcessTree

FAILED = "Horovod detected that one or more processes exited with non-zero status, so the job was ended."


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: tuple[int, int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    tag: str = "auto",
    *,
    spares: int | None = None,
    progress_timeout_seconds: float | None = None,
    replace_stuck_workers: bool | None = None,
    max_restarts: int | None = None,
) -> list[Any]:
    """Start a job, call a function on each of its ranks, and return the results.

    The function and its arguments are pickled by value, so lambdas and functions of a notebook work. With
    `min_num_proc` or `host_discovery_script` the job is elastic, and the results are those of the first `min_num_proc`
    ranks.

    Args:
        func: The function, which calls hvd.init() itself.
        args: Positional arguments of the function.
        kwargs: Keyword arguments of the function.
        num_proc: Number of ranks.
        min_num_proc: The fewest ranks that an elastic job may run with.
        max_num_proc: The most ranks that an elastic job may run with.
        slots: Slots of each host that discovery names without a number (elastic jobs).
        reset_limit: Fail after this many resets (elastic jobs).
        cooldown_range: Seconds after which a failed host may come back, as (shortest, longest) (elastic jobs).
        hosts: Hosts and their slots, such as 'host1:2,host2:4'.
        hostfile: File of lines such as 'host1 slots=2'.
        host_discovery_script: Program that prints hosts (elastic jobs).
        start_timeout: Seconds that each host has to answer.
        ssh_port: Port of sshd on all hosts.
        ssh_identity_file: File of the private key for ssh.
        disable_cache: Has no effect.
        output_filename: Folder in which the output of each rank is also written.
        verbose: Report more about the launch, and keep all output after a failure.
        use_gloo: Use the engine without MPI, which is the default.
        use_mpi: Start through mpirun.
        mpi_args: More arguments for mpirun.
        network_interface: Deprecated; use `network_interfaces`.
        network_interfaces: Names of the network interfaces to use, as a list or with commas.
        executable: The Python that runs the ranks. By default the one that runs this program.
        np: Deprecated; use `num_proc`.
        min_np: Deprecated; use `min_num_proc`.
        max_np: Deprecated; use `max_num_proc`.
        tag: Let printed lines begin with their rank. 'always', 'never', or 'auto', which means neither in a notebook
            nor with `use_mpi`.
        spares: Number of workers that wait for another's place (elastic jobs).
        progress_timeout_seconds: Report or replace a worker that has made no progress for so long (elastic jobs).
        replace_stuck_workers: Replace workers that make no progress, instead of reporting them (elastic jobs).
        max_restarts: Start all workers again after a failure, at most this many times.

    Returns:
        What the function returned on each rank, in the order of the ranks.

    Raises:
        RuntimeError: A worker failed. The text holds the traceback of the one that failed first.
        ValueError: Arguments are not valid or do not fit together.

    Example:
        >>> import horovod
        >>> results = horovod.run(train, args=(0.1,), num_proc=2)  # train(0.1) on two ranks
    """
    num_proc = _renamed("np", np, "num_proc", num_proc)
    min_num_proc = _renamed("min_np", min_np, "min_num_proc", min_num_proc)
    max_num_proc = _renamed("max_np", max_np, "max_num_proc", max_num_proc)
    network_interfaces = _renamed("network_interface", network_interface, "network_interfaces", network_interfaces)
    if hosts is not None and hostfile is not None:
        raise ValueError("Argument hosts and hostfile only allow one provided.")
    if use_gloo and use_mpi:
        raise ValueError("Argument use_gloo and use_mpi only allow one set True.")
    if tag not in ("auto", "always", "never"):
        raise ValueError(f"tag must be auto, always or never, not {tag!r}")
    if num_proc < 1:
        raise ValueError(f"num_proc must be at least 1, not {num_proc}")
    from horovod.launcher.checks import check_output_folder, refuse_unavailable
    from horovod.launcher.options import JobOptions

    check_output_folder(output_filename)
    options = JobOptions.of(
        {
            "num_proc": num_proc,
            "min_num_proc": min_num_proc,
            "max_num_proc": max_num_proc,
            "slots": slots,
            "reset_limit": reset_limit,
            "cooldown_range": cooldown_range,
            "host_discovery_script": host_discovery_script,
            "hosts": hosts,
            "hostfile": hostfile,
            "start_timeout": start_timeout,
            "disable_cache": disable_cache,
            "output_filename": output_filename,
            "tag": tag,
            "verbose": verbose,
            "use_mpi": use_mpi,
            "mpi_args": mpi_args,
            "ssh_port": ssh_port,
            "ssh_identity_file": ssh_identity_file,
            "nics": listed_interfaces(network_interfaces),
            "spares": spares,
            "progress_timeout_seconds": progress_timeout_seconds,
            "replace_stuck_workers": replace_stuck_workers,
            "max_restarts": max_restarts,
        }
    )
    refuse_unavailable(options)
    warn_of_what_has_no_effect(options)
    with dropping():
        return results_of(options, func, args, kwargs or {}, executable or sys.executable)


def run_own(func: Callable[..., Any], args: Sequence[Any], options: JobOptions) -> list[Any]:
    """Call a function of this package as `run` does, but without importing modules from the current folder."""
    with dropping():
        return results_of(options, func, args, {}, sys.executable, in_folder=False)


def results_of(
    options: JobOptions,
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    executable: str,
    *,
    in_folder: bool = True,
) -> list[Any]:
    """Run a job whose ranks call a function, and return the results by rank.

    Args:
        in_folder: Let the workers import modules from the current folder too, as `python -m` does.

    Raises:
        RuntimeError: The job failed.
    """
    from horovod.common import serialization
    from horovod.common.own_programs import module_arguments
    from horovod.launcher import run_task
    from horovod.launcher.output.notebooks import cell_sources

    shipped = serialization.dumps_with_main((func, tuple(args), dict(kwargs)))
    sources = serialization.dumps(cell_sources())
    results: list[Any] = []

    def offer(server: Server) -> None:
        path = [entry or os.getcwd() for entry in sys.path]
        server.put(run_task.PATH_KEY, "\0".join(path).encode("utf-8", "surrogateescape"))
        server.put(run_task.SOURCES_KEY, sources)
        server.put(run_task.FUNCTION_KEY, shipped)

    def collect(server: Server, result: JobResult) -> None:
        if result.stop_signal is not None:
            return
        if result.exit_code != 0:
            raise RuntimeError(_failure_text(server, result))
        # An elastic job may end with any number of workers, but never fewer than this.
        results.extend(_results(server, options.min_num_proc or options.num_proc))

    name = run_task.__name__
    command = [executable, *(["-m", name] if in_folder else module_arguments(name))]

    def start(tree: ProcessTree, output: UserOutput) -> JobResult:
        if options.use_mpi:
            from horovod.launcher.start import mpi_function

            return mpi_function.run_function(options, command, tree, output, offer, collect)
        from horovod.launcher.start.assembly import JobRequest
        from horovod.launcher.start.running import run_job

        return run_job(JobRequest(options, command, on_server=offer, after=collect), tree, output)

    run_shown(start)
    return results


def run_shown(start: Callable[[ProcessTree, UserOutput], JobResult]) -> JobResult:
    """Run a job and print its output where Python prints. Raise a signal that ended the job in this process too."""
    from horovod.launcher.output.user_output import output_of_python
    from horovod.launcher.start.processes import ProcessTree

    output = output_of_python()
    went_well = False
    try:
        with ProcessTree() as tree:
            result = start(tree, output)
        went_well = result.exit_code == 0
    finally:
        output.close(went_well)
    if result.stop_signal == signal.SIGINT:
        raise KeyboardInterrupt
    if result.stop_signal is not None:
        signal.raise_signal(result.stop_signal)  # the caller's own handler is installed again
        raise RuntimeError(f"the job was ended by signal {result.stop_signal}")
    return result


def _results(server: Server, ranks: int) -> list[Any]:
    from horovod.common import serialization
    from horovod.launcher.run_task import result_key

    values = [server.get(result_key(rank)) for rank in range(ranks)]
    for rank, value in enumerate(values):
        if value is None:
            raise RuntimeError(f"{FAILED}\nrank {rank} ended with exit code 0 before the function returned")
    return [serialization.loads(value) for value in values if value is not None]


def _failure_text(server: Server, result: JobResult) -> str:
    from horovod.launcher.output.notebooks import with_cell_names
    from horovod.launcher.run_task import error_key

    if result.failed_rank is None:  # an elastic job that did not fail because of one particular worker
        return f"{FAILED}\n{result.text}"
    trace = server.get(error_key(result.failed_rank))
    if trace is None:
        return f"{FAILED}\n{result.text}"
    first_line = result.text.partition("\n")[0].partition(";")[0]
    return f"{FAILED}\n{first_line}\n{with_cell_names(trace.decode(errors='replace'))}"


def warn_of_what_has_no_effect(options: JobOptions, caller: str = "horovod.run") -> None:
    """Log a warning for each argument that was given but has no effect.

    `caller` is the function that the user called.
    """
    from horovod.launcher import without_effect

    texts = [without_effect.sentence(name) for name in without_effect.given(options)]
    for name in without_effect.given_without_driver(options):
        texts.append(without_effect.needs_driver(name, "min_num_proc", "host_discovery_script"))
    if texts:
        import logging

        for text in texts:
            logging.getLogger("horovod").warning("%s: %s", caller, text)


def _renamed(old_name: str, old: Any, new_name: str, new: Any) -> Any:
    if old is None:
        return new
    warnings.warn(f"{old_name} is deprecated, use {new_name}", HorovodDeprecationWarning, stacklevel=3)
    return old


def listed_interfaces(interfaces: str | Iterable[str] | None) -> list[str]:
    """Return the names of network interfaces, given as a list or as comma-separated text."""
    if interfaces is None:
        return []
    listed = interfaces.split(",") if isinstance(interfaces, str) else list(interfaces)
    return [name.strip() for name in listed if name.strip()]
