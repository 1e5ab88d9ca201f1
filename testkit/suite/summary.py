# SPDX-License-Identifier: Apache-2.0
"""Summary that the suite prints: tables of times, failures with the command that repeats them, unrun parts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from testkit.suite.parts import Part
from testkit.suite.records import Record
from testkit.suite.running import Result


def summary(results: Sequence[Result], elsewhere: Mapping[str, str], wall_s: float) -> str:
    """Return the whole text.

    Args:
        results: Results of all parts, in the order in which they ended.
        elsewhere: Title of tests that this command does not run -> the command that runs them.
        wall_s: Seconds since the start of the command.
    """
    blocks = [_parts_table(results), _folders_table(results), _times(results, wall_s)]
    if not_run := [result.part for result in results if result.seconds is None]:
        elsewhere = {
            f"{part.name} ({part.title}; something before it failed)": part.repeated_by() for part in not_run
        } | dict(elsewhere)
    if elsewhere:
        blocks.append("not run:\n" + "\n".join(f"  {what}: {command}" for what, command in elsewhere.items()))
    blocks.append(_verdict(results))
    return "\n\n".join(blocks)


def _parts_table(results: Iterable[Result]) -> str:
    rows = [("part", "result", "seconds", "processor", "tests", "skipped", "ranks", "compiled", "what")]
    for result in results:
        if result.seconds is None:
            continue
        skipped = sum(record.outcome == "skipped" for record in result.records)
        ran = len(result.records) - skipped
        ranks = sum(record.ranks for record in result.records)
        verdict = "FAILED" if result.has_failed else "unchanged" if result.is_unchanged else "passed"
        counts = [_shown(number) for number in (ran, skipped, ranks, result.objects)]
        times = (f"{result.seconds:.0f}", f"{result.processor_s:.0f}")
        rows.append((result.part.name, verdict, *times, *counts, result.part.title))
    return _table(rows)


def _folders_table(results: Iterable[Result]) -> str:
    """Return a table by folder. Its seconds are sums over tests, even if tests ran in parallel."""
    by_folder: dict[str, list[Record]] = {}
    for result in results:
        for record in result.records:
            by_folder.setdefault(record.folder, []).append(record)
    rows = [("folder", "seconds", "tests", "ranks", "retries")]
    for folder, records in sorted(by_folder.items()):
        numbers = (len(records), sum(record.ranks for record in records), sum(record.retries for record in records))
        seconds = sum(record.seconds for record in records)
        rows.append((folder, f"{seconds:.0f}", *(_shown(number) for number in numbers)))
    return _table(rows) if len(rows) > 1 else "no tests ran"


def _times(results: Sequence[Result], wall_s: float) -> str:
    def total(chosen: Iterable[Result]) -> float:
        return sum(result.seconds or 0 for result in chosen)

    downloads = total(result for result in results if result.part.is_download)
    setup = total(result for result in results if result.part.is_setup)
    processor = sum(result.processor_s for result in results)
    return (
        f"{wall_s:.0f} s in all, {processor:.0f} s of processor time; parts one by one: "
        f"downloads {downloads:.0f} s, build and install {setup:.0f} s"
    )


def _verdict(results: Sequence[Result]) -> str:
    failed = [result for result in results if result.has_failed]
    retries = sum(record.retries for result in results for record in result.records)
    retried = f"; {retries} repeated because other programs used the machine" if retries else ""
    if not failed:
        tests = sum(len(result.records) for result in results)
        return f"passed: {tests} tests{retried}"
    lines = [line for result in failed for line in _failures(result)]
    return "\n".join([f"FAILED{retried}", *lines])


def _failures(result: Result) -> list[str]:
    """Return, for each failed test, the command that repeats it; for a part without tests, the part's command."""
    variables = "".join(f"{name}={value} " for name, value in result.part.env.items() if name != "PYTEST_ARGS")
    failed = [record for record in result.records if record.outcome == "failed"]
    if not failed:
        return [f"  {result.part.name}: repeat it by\n    {result.part.repeated_by()}"]
    return [f"  failed; repeat it by\n    {variables}{test.python} -m pytest '{test.test}'" for test in failed]


def _shown(number: int) -> str:
    return str(number) if number else ""


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows with aligned columns; columns of numbers are aligned to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    is_number = [all(not row[column] or row[column].isdigit() for row in rows[1:]) for column in range(len(rows[0]))]

    def cell(text: str, column: int) -> str:
        return text.rjust(widths[column]) if is_number[column] else text.ljust(widths[column])

    return "\n".join("  ".join(cell(text, column) for column, text in enumerate(row)).rstrip() for row in rows)


def titles(parts: Iterable[Part]) -> dict[str, str]:
    """Return the parts' names and titles, with the command that runs each."""
    return {f"{part.name} ({part.title})": part.repeated_by() for part in parts}
