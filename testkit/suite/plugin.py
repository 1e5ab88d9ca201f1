# SPDX-License-Identifier: Apache-2.0
"""Pytest hooks of the suite: selection of a part's tests, records, retries, and limits for slow machines.

tests/conftest.py imports the hooks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from testkit import processes
from testkit.foreign_load import ForeignLoad
from testkit.places import ROOT
from testkit.speed import patience
from testkit.started import ranks_started
from testkit.suite.parts import OLD, TEST
from testkit.suite.records import Record, RecordWriter
from testkit.suite.selection import Known, picked

MAX_TRIES = 3
FOREIGN_CORES = 0.25  # with a higher load from other programs, these may be the reason for a missed time
PROMISE = "promise"
_PARTS = {part.name: part.picks for part in TEST if part.picks}
_SHOWN_BYTES = 20_000

_writer = RecordWriter()


def pytest_addoption(parser: pytest.Parser) -> None:
    names = ", ".join(_PARTS)
    parser.addoption(
        "--selection",
        choices=["test", "rest", "rest-promises", "old", *_PARTS],
        help="test: what `make test` runs; rest: everything else; old: what a framework's oldest version runs; "
        f"or a part of `make test`: {names}",
    )


def known(item: pytest.Item) -> Known:
    callspec = getattr(item, "callspec", None)
    world = callspec.params.get("world") if callspec is not None else None
    return Known(
        file=str(Path(item.path).relative_to(ROOT)),
        name=item.name,
        world=getattr(world, "name", ""),
        is_promise=is_promise(item),
        is_slow=item.get_closest_marker("slow") is not None,
    )


@pytest.hookimpl(tryfirst=True)  # runs before -k and -m, so that these do not change which test is the first of a file
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if selection := config.getoption("selection"):
        chosen = [item for item, is_chosen in zip(items, _choices(selection, items), strict=True) if is_chosen]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
        items[:] = chosen


def pytest_collection_finish(session: pytest.Session) -> None:
    _writer.plan(len(session.items))


def _choices(selection: str, items: list[pytest.Item]) -> list[bool]:
    tests = [known(item) for item in items]
    if selection == "old":
        return OLD.picked(tests)
    if selection.startswith("rest"):
        in_test = picked([pick for picks in _PARTS.values() for pick in picks], tests)
        wants_promises = selection == "rest-promises"
        return [
            not is_taken and test.is_promise == wants_promises and not test.is_slow
            for test, is_taken in zip(tests, in_test, strict=True)
        ]
    picks = [pick for name, picks in _PARTS.items() if selection in ("test", name) for pick in picks]
    return picked(picks, tests)


def is_promise(item: pytest.Item) -> bool:
    return item.get_closest_marker(PROMISE) is not None


@pytest.hookimpl(specname="pytest_runtest_protocol", wrapper=True, tryfirst=True)
def pytest_scale_timeout(item: pytest.Item) -> Iterator[None]:
    """Scale the test's time limit for this machine; for a promise, allow the time of all its tries.

    This hook runs before pytest-timeout reads the limit.
    """
    marker = item.get_closest_marker("timeout")
    limit_s = marker.args[0] if marker and marker.args else item.config._env_timeout  # type: ignore[attr-defined]
    if limit_s:
        tries = MAX_TRIES if is_promise(item) else 1
        item.add_marker(pytest.mark.timeout(patience(limit_s) * tries), append=False)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    processes.forget_transcripts()
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run the test. If a promised time is missed while other programs use the machine, repeat it up to two times."""
    reports, ranks_before, tries = [], ranks_started(), 0
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    while True:
        load = ForeignLoad()
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        tries += 1
        has_failed = any(report.failed for report in reports)
        if not (has_failed and is_promise(item) and tries < MAX_TRIES and load.cores() > FOREIGN_CORES):
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    seconds = sum(report.duration for report in reports)
    ranks = ranks_started() - ranks_before
    _writer.write(
        Record(item.nodeid, _outcome(reports), seconds, ranks, tries - 1, os.path.relpath(sys.executable, ROOT))
    )
    return True


def _outcome(reports: list[pytest.TestReport]) -> str:
    if any(report.failed for report in reports):
        return "failed"
    return "skipped" if any(report.skipped for report in reports) else "passed"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add to a failure's report what each process of the test has printed."""
    report = yield
    if report.failed and (text := processes.transcripts(_SHOWN_BYTES)):
        report.sections.append(("printed by the processes of this test", text))
    return report
