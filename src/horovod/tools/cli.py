# SPDX-License-Identifier: Apache-2.0
"""The `hvd` command. Each sub-command imports what it needs when it runs, so that `hvd --help` stays quick."""

from __future__ import annotations

import io
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

PAGE_WIDTH = 100


class Transport(str, Enum):
    """What `hvd test` can be asked to use: the names of horovod.tools.trial.TRANSPORTS."""

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


@app.command()
def doctor(json: Annotated[bool, typer.Option("--json", help="For programs, not for people.")] = False) -> None:
    """What this machine offers to a job, and what to change about it."""
    from horovod.tools import doctor as examination

    found = examination.examine()
    if json:
        _print_json(examination.as_json(found))
    else:
        _print_page(examination.as_page(found))


@app.command("test")
def run_test(
    ranks: Annotated[int, typer.Option("-np", "--num-proc", min=1, max=256, help="How many ranks.")] = 2,
    transport: Annotated[Transport, typer.Option(help="What the ranks talk over.")] = Transport.AUTO,
    limit_s: Annotated[float, typer.Option("--time-limit", min=1, help="In seconds.")] = 120.0,
    json: Annotated[bool, typer.Option("--json", help="For programs, not for people.")] = False,
) -> None:
    """Run every collective on every dtype with real ranks here, and time allreduce. Exit code 1 if anything fails."""
    from horovod.tools import results, selftest
    from horovod.tools.trial import TrialFailed

    try:
        report = selftest.run(ranks, transport.value, limit_s)
    except (TrialFailed, ValueError) as error:
        typer.echo(f"hvd test: {error}", err=True)
        raise typer.Exit(1) from None
    if json:
        _print_json(results.as_json(report))
    else:
        _print_page(results.as_page(report))
    if not report.passed:
        raise typer.Exit(1)


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


def _print_json(document: object) -> None:
    import json

    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def _print_page(page: list[RenderableType]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PAGE_WIDTH  # a file or a pipe has no width of its own
    for part in page:
        console.print(part)


timeline_app = typer.Typer(help="Work with timelines (HOROVOD_TIMELINE).", no_args_is_help=True)
app.add_typer(timeline_app, name="timeline")


@timeline_app.callback()
def _timeline() -> None:
    """Work with timelines (HOROVOD_TIMELINE)."""


@timeline_app.command("merge")
def merge_timelines(
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Where to write the one timeline.")],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="The timelines of the ranks.")],
) -> None:
    """Make one timeline of those of several ranks, on one clock."""
    from horovod.tools import timeline

    try:
        count = timeline.merge(output, files)
    except (OSError, ValueError) as error:
        typer.echo(f"hvd timeline merge: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{output}: {count} events of {len(files)} timelines")


def main() -> None:
    # A terminal that knows no check marks gets question marks, not a traceback.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    app()


if __name__ == "__main__":
    main()
