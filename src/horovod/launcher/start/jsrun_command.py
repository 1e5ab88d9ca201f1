# SPDX-License-Identifier: Apache-2.0
"""horovodrun --jsrun: the jsrun command that starts a job's ranks inside an LSF job. It replaces this process."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from typing import NoReturn

from horovod.launcher.options import JobOptions
from horovod.launcher.start.allocation import find_allocation
from horovod.launcher.start.hosts import HostInfo, get_host_assignments
from horovod.launcher.start.mpi_command import worker_environment
from horovod.launcher.start.worker_environment import names_devices


def run_by_jsrun(options: JobOptions, command: Sequence[str]) -> NoReturn:
    """Replace this process by jsrun. Raise ValueError if that is not possible here."""
    words, environment = jsrun_words(options, command)
    _flush_standard_streams()
    os.execvpe(words[0], words, environment)


def jsrun_words(options: JobOptions, command: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command and its environment. Raise ValueError if there is no jsrun or no suitable LSF job."""
    if shutil.which("jsrun") is None:
        raise ValueError("--jsrun needs LSF's jsrun on PATH; without --jsrun agents are started with blaunch")
    allocation = find_allocation(os.environ)
    if allocation is None or allocation.source != "LSF" or not allocation.hosts:
        raise ValueError("--jsrun works inside an LSF job, whose hosts LSB_MCPU_HOSTS names")
    for given, flag in (
        (options.hosts, "-H"),
        (options.hostfile, "--hostfile"),
        (options.output_filename, "--output-filename"),
    ):
        if given is not None:
            raise ValueError(
                f"{flag} cannot be combined with --jsrun, which uses the hosts of the LSF job: leave one of them out"
            )
    slots = get_host_assignments(list(allocation.hosts), options.num_proc)
    hosts = [HostInfo(slot.hostname, slot.local_size) for slot in slots if slot.local_rank == 0]
    words = jsrun_command(hosts, options, command)
    if options.verbose:
        print(f"horovodrun: {shlex.join(words)}", file=sys.stderr)
    environment = worker_environment(options)
    # jsrun passes variables to all hosts and chooses the GPUs of each host itself.
    return words, {name: value for name, value in environment.items() if not names_devices(name)}


def _flush_standard_streams() -> None:
    """Write Python's buffered output, because another program is about to replace this process."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None if the caller has closed the descriptor
            stream.flush()


def jsrun_command(hosts: Sequence[HostInfo], options: JobOptions, command: Sequence[str]) -> list[str]:
    """Return the jsrun command: one resource set per host, with all cores and GPUs.

    Ranks choose by local rank.
    """
    counts = {host.slots for host in hosts}
    if len(counts) != 1:
        listed = ", ".join(f"{host.hostname}:{host.slots}" for host in hosts)
        raise ValueError(f"--jsrun needs the same number of ranks on every host, not {listed}: choose another -np")
    sets = ["--nrs", str(len(hosts)), "--rs_per_host", "1", "--tasks_per_rs", str(counts.pop())]
    shares = ["--cpu_per_rs", "ALL_CPUS", "--gpu_per_rs", "ALL_GPUS"]
    binding = shlex.split(options.binding_args or "") or ["--bind", "none"]
    return ["jsrun", *sets, *shares, *binding, *shlex.split(options.mpi_args or ""), *command]
