# SPDX-License-Identifier: Apache-2.0
"""Command line of scripts/mutants."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from testkit.mutants import equivalents, picks
from testkit.mutants.change import Change
from testkit.mutants.judges import JUDGES
from testkit.mutants.report import report
from testkit.mutants.results import Begun, Writer, read
from testkit.mutants.slices import Slice, trees_of, undecided_of
from testkit.mutants.trees import BuildError
from testkit.mutants.verdicts import Verdict
from testkit.places import ROOT

_SLICE_S = 500.0


def main(arguments: list[str], description: str | None) -> int:
    """Run scripts/mutants with these arguments. Return its exit code."""
    if arguments[:1] == ["report"]:
        return _report(arguments[1:])
    options = _options(arguments, description)
    changes = _changes(options)
    if options.list:
        for change in itertools.islice(changes, options.count or 20):
            print(
                f"{change.path}:{change.line} ({change.operator})\n- {change.before.strip()}\n+ {change.after.strip()}"
            )
        return 0
    return _judge(options, changes)


def _options(arguments: list[str], description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="which mutants, and in which order")
    parser.add_argument(
        "--results", type=Path, default=Path("mutants.jsonl"), help="file that slices of this seed add to"
    )
    parser.add_argument(
        "--seconds", type=float, default=_SLICE_S, help="the slice ends after so long (default: %(default)s)"
    )
    parser.add_argument("--count", type=int, help="judge at most so many mutants")
    parser.add_argument(
        "--jobs", type=int, default=1, help="mutants judged at the same time, each in a tree of its own"
    )
    parser.add_argument("--judge", choices=list(JUDGES), default="full", help="quick: what make test runs")
    parser.add_argument("--again", type=Path, metavar="FILE", help="judge the survivors of these results again")
    parser.add_argument("--list", action="store_true", help="print the mutants of the seed and judge none")
    return parser.parse_args(arguments)


def _changes(options: argparse.Namespace) -> Iterator[Change]:
    found = picks.all_changes(ROOT)
    if options.again is None:
        return picks.picked(found, options.seed)
    survivors = {one.change.key for one in read(options.again).of(Verdict.SURVIVED)}
    changes = (change for lines in found.values() for line in lines for change in line)
    return (change for change in changes if change.key in survivors)


def _judge(options: argparse.Namespace, changes: Iterator[Change]) -> int:
    deadline = time.monotonic() + options.seconds
    begun = Begun(options.seed, picks.digest_of_sources(ROOT), options.judge)
    results = read(options.results)
    if results.begun not in (None, begun):
        sys.exit(f"{options.results} was begun with {results.begun}, but this is {begun}: choose another file")
    folder = Path(os.environ.get("BUILD", ROOT / "build")) / "mutants"
    cores = int(os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or os.cpu_count() or 1)
    trees = trees_of(folder, ROOT, options.jobs, cores)
    part = Slice(JUDGES[options.judge], trees, Writer(options.results), deadline)
    try:
        void = part.run(begun, undecided_of(changes, results, options.count))
    except BuildError as error:
        sys.exit(str(error))
    if void:
        sys.exit(f"this slice is void: {void}")
    return _report([str(options.results)])


def _report(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="mutants report", description="Print what is in a file of results.")
    parser.add_argument("results", type=Path)
    options = parser.parse_args(arguments)
    print(report(read(options.results), equivalents.read(ROOT / equivalents.FILE)))
    return 0
