# SPDX-License-Identifier: Apache-2.0
"""The `hvd` command. Each sub-command imports what it needs when it runs, so that `hvd --help` stays quick."""

from __future__ import annotations

from typing import Annotated

import typer

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

    sections = examination.examine()
    typer.echo(examination.as_json(sections) if json else examination.as_text(sections))


def main() -> None:
    app()


if __name__ == "__main__":
    main()
