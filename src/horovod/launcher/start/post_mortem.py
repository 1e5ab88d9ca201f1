# SPDX-License-Identifier: Apache-2.0
"""Summary of a failed job: the first failure, and a table of how all workers ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from horovod.launcher.output.last_error import LastError
from horovod.launcher.start.hosts import SlotInfo
from horovod.launcher.start.remedies import remedy_for

_MOST_LINES = 32


def failure_text(what: str, how: str, error: LastError, last_lines: Sequence[str], reported: str | None = None) -> str:
    """Return what is known of the first failure: the rank, the place in the user's program, and a remedy.

    Args:
        what: The first line, which names the rank and how it ended.
        how: How it ended.
        error: The last tracebacks in its stderr.
        last_lines: The last lines of its stderr, shown if there is no traceback.
        reported: What the rank itself reported, for example "raised ValueError: no such file".
    """
    exception = (reported or "").removeprefix("raised ")
    own = error.of(exception)
    # A program that calls sys.exit may have caught and printed the exception that is the reason.
    traceback = error.last() if reported is None or exception.startswith("SystemExit") else own
    details = [f"it {reported}"] if reported is not None and not own.lines else []
    details += traceback.summary()
    if not traceback.lines and last_lines:
        details += ["last lines of its stderr:", *(f"  {line}" for line in last_lines)]
    if not details:
        what += "; it wrote nothing to stderr"
    known = "\n".join(filter(None, (exception, traceback.error)))
    remedy = remedy_for(how, known or (last_lines[-1] if last_lines else ""))
    return "\n".join([what, *(f"  {line}" for line in [*details, *([f"what to do: {remedy}"] if remedy else [])])])


def exit_table(slots: Sequence[SlotInfo], cause: int, how: Mapping[int, str]) -> str:
    """Return a table of how the workers ended. Consecutive ranks with equal text on one host share a line.

    Args:
        how: The ends of ranks that failed, in the order in which they ended.
    """
    others = [slot.rank for slot in slots if slot.rank != cause]
    rows = [(str(cause), slots[cause].hostname, f"{how.get(cause, 'failed')} (first)")]
    rows += [(_ranks(run), host, text) for run, host, text in _runs(others, slots, how)]
    heading = ("rank", "host", "how it ended")
    widths = [max(len(row[column]) for row in (heading, *rows)) for column in range(2)]
    lines = [f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}" for row in (heading, *rows[:_MOST_LINES])]
    if len(rows) > _MOST_LINES:
        lines.append(f"  and {len(rows) - _MOST_LINES} more")
    return "\n".join(["how the workers ended:", *lines])


def _runs(
    ranks: Sequence[int], slots: Sequence[SlotInfo], how: Mapping[int, str]
) -> Iterator[tuple[list[int], str, str]]:
    run: list[int] = []
    for rank in ranks:
        same = run and slots[run[0]].hostname == slots[rank].hostname and how.get(run[0]) == how.get(rank)
        if run and not (same and rank == run[-1] + 1):
            yield run, slots[run[0]].hostname, how.get(run[0], "exit code 0")
            run = []
        run = [*run, rank]
    if run:
        yield run, slots[run[0]].hostname, how.get(run[0], "exit code 0")


def _ranks(run: Sequence[int]) -> str:
    return str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"
