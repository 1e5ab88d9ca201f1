# SPDX-License-Identifier: Apache-2.0
"""The `hvd` command. Each sub-command imports its modules when it runs, so that `hvd --help` stays quick."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from horovod.launcher.options import JobOptions

PAGE_WIDTH = 100


class Transport(str, Enum):
    """Values of `hvd test --transport`: the names of horovod.tools.trial.TRANSPORTS."""

    AUTO = "auto"
    SHM = "shm"
    TCP = "tcp"


app = typer.Typer(
    name="hvd",
    help="Tools around Horovod jobs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        import horovod

        typer.echo(horovod.__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Tools around Horovod jobs."""


# Options with horovodrun's names.
Hosts = Annotated[str | None, typer.Option("-H", "--hosts", metavar="HOST:SLOTS[,...]", help="The hosts of a job.")]
HostFile = Annotated[str | None, typer.Option("-hostfile", "--hostfile", metavar="FILE", help="Lines 'host slots=n'.")]
SshPort = Annotated[int | None, typer.Option("-p", "--ssh-port", help="Port of sshd on all hosts.")]
SshIdentity = Annotated[str | None, typer.Option("-i", "--ssh-identity-file", help="File of the private key.")]
Interfaces = Annotated[str | None, typer.Option("--network-interfaces", metavar="NIC[,NIC]", help="Use only these.")]
StartLimit = Annotated[int | None, typer.Option("--start-timeout", min=1, help="Seconds that each host has to answer.")]
Json = Annotated[bool, typer.Option("--json", help="For programs, not for people.")]


@app.command()
def doctor(
    hosts: Hosts = None,
    hostfile: HostFile = None,
    ssh_port: SshPort = None,
    ssh_identity_file: SshIdentity = None,
    network_interfaces: Interfaces = None,
    start_timeout: StartLimit = None,
    json: Json = False,
) -> None:
    """Check this machine, or a job's hosts, and suggest fixes.

    Inside an allocation of Slurm or LSF its hosts need not be named. Exit code 1 if two ranks cannot use a transport of
    this machine, or if a host cannot be used.
    """
    from horovod.tools import hosts_page, several_hosts

    given = _host_options(hosts, hostfile, ssh_port, ssh_identity_file, network_interfaces, start_timeout)
    try:
        options = several_hosts.options_of_job(given)
        if options is None:
            from horovod.tools import doctor as examination

            found = examination.examine()
            _print(json, lambda: examination.as_json(found), lambda: examination.as_page(found))
            raise typer.Exit(int(not found.works))
        with _progress() as say:
            seen = several_hosts.examine(options, say)
    except (ValueError, OSError) as error:
        typer.echo(f"hvd doctor: {error}", err=True)
        raise typer.Exit(1) from None
    _print(json, lambda: hosts_page.as_json(seen), lambda: hosts_page.as_page(seen))
    raise typer.Exit(int(not seen.works))


@app.command("test")
def run_test(
    ranks: Annotated[
        int | None,
        typer.Option(
            "-np", "--num-proc", min=1, max=256, help="How many ranks. Default: 2, or all slots of the hosts."
        ),
    ] = None,
    transport: Annotated[Transport, typer.Option(help="What the ranks of one host talk over.")] = Transport.AUTO,
    limit_s: Annotated[float, typer.Option("--time-limit", min=1, help="In seconds.")] = 120.0,
    hosts: Hosts = None,
    hostfile: HostFile = None,
    ssh_port: SshPort = None,
    ssh_identity_file: SshIdentity = None,
    network_interfaces: Interfaces = None,
    start_timeout: StartLimit = None,
    json: Json = False,
) -> None:
    """Run every collective on every dtype with real ranks, and time allreduce. Exit code 1 if anything fails."""
    from horovod.tools import results, selftest
    from horovod.tools.trial import TrialFailed

    options = _host_options(hosts, hostfile, ssh_port, ssh_identity_file, network_interfaces, start_timeout)
    try:
        report = selftest.run(ranks, transport.value, limit_s, options)
    except (TrialFailed, ValueError, OSError) as error:
        typer.echo(f"hvd test: {error}", err=True)
        raise typer.Exit(1) from None
    _print(json, lambda: results.as_json(report), lambda: results.as_page(report))
    if not report.passed:
        raise typer.Exit(1)


def _host_options(
    hosts: str | None,
    hostfile: str | None,
    ssh_port: int | None,
    ssh_identity_file: str | None,
    network_interfaces: str | None,
    start_timeout: int | None,
) -> JobOptions:
    """Return the options that name hosts and how to reach them."""
    from horovod.launcher.options import JobOptions

    return JobOptions(
        hosts=hosts,
        hostfile=hostfile,
        ssh_port=ssh_port,
        ssh_identity_file=ssh_identity_file,
        nics=tuple(name.strip() for name in (network_interfaces or "").split(",") if name.strip()),
        start_timeout=start_timeout,
    )


@app.command()
def stacks(
    pids: Annotated[
        list[int] | None, typer.Argument(help="Workers, or a launcher for all its workers. Default: all of yours.")
    ] = None,
    limit_s: Annotated[float, typer.Option("--time-limit", min=0.1, help="Seconds to wait for each worker.")] = 2.0,
) -> None:
    """Print the Python stacks of all threads of running workers. They are not disturbed."""
    from horovod.tools import stacks as asking

    failed = False
    try:
        workers = asking.find_workers(pids or [])
    except asking.NoAnswer as reason:
        typer.echo(f"hvd stacks: {reason}", err=True)
        raise typer.Exit(1) from None
    if not workers:
        typer.echo("hvd stacks: no worker of yours runs on this machine", err=True)
        raise typer.Exit(1)
    for worker in workers:
        typer.echo(f"== {asking.title(worker.pid)}")
        try:
            typer.echo(asking.read_stacks(worker, limit_s))
        except asking.NoAnswer as reason:
            failed = True
            typer.echo(f"{reason}\n")
    raise typer.Exit(int(failed))


@app.command()
def checkpoints(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The directory given to hvd.elastic.checkpoint().")],
    json: Json = False,
) -> None:
    """List the checkpoints of elastic jobs in a directory: lineage, commits, time, and whether each is intact.

    Exit code 1 if one is damaged, or if no job could go on from this directory.
    """
    from horovod.tools import checkpoints as listing

    try:
        found = listing.examine(folder)
    except OSError as error:
        typer.echo(f"hvd checkpoints: {error}", err=True)
        raise typer.Exit(1) from None
    _print(json, lambda: listing.as_json(found), lambda: listing.as_page(found))
    if not found.is_intact:
        raise typer.Exit(1)


def _print(json: bool, document: Callable[[], object], page: Callable[[], list[RenderableType]]) -> None:
    if json:
        _print_json(document())
    else:
        _print_page(page())


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show the current activity in one line if stderr is a terminal."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("") as line:
        yield line.update


def _print_json(document: object) -> None:
    import json

    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def _print_page(page: list[RenderableType]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PAGE_WIDTH  # a file or a pipe has no width
    for part in page:
        console.print(part, crop=False)  # do not crop commands, which may be longer than a line


timeline_app = typer.Typer(help="Work with timelines (HOROVOD_TIMELINE).", no_args_is_help=True)
app.add_typer(timeline_app, name="timeline")


@timeline_app.callback()
def _timeline() -> None:
    """Work with timelines (HOROVOD_TIMELINE)."""


@timeline_app.command("merge")
def merge_timelines(
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Where to write the one timeline.")],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="The timelines of the ranks.")],
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
) -> None:
    """Make one timeline of those of several ranks, on one clock."""
    from horovod.tools import timeline

    try:
        count = timeline.merge(output, files, force=force)
    except (OSError, ValueError) as error:
        typer.echo(f"hvd timeline merge: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{output}: {count} events of {len(files)} timelines")


def main() -> None:
    # A terminal without check marks shows question marks instead of failing.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    app()


if __name__ == "__main__":
    main()
