# SPDX-License-Identifier: Apache-2.0
"""Slice: some minutes in which each job runs a control without mutant, then judges mutants in its tree."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from testkit.mutants.change import Change
from testkit.mutants.judges import Judge, command_of, first_failure
from testkit.mutants.results import Begun, Judged, Results, Writer
from testkit.mutants.runs import NO_TESTS, Run, run
from testkit.mutants.trees import Tree
from testkit.mutants.verdicts import Ended, Step, Verdict, limit_of, verdict_of, why_void

_PRINTED = 6000  # characters of a failed control's output


class Slice:
    """Judgement of mutants until the time is over or none is left. The end leaves a started mutant undecided."""

    def __init__(self, judges: Sequence[Judge], trees: Sequence[Tree], writer: Writer, deadline: float) -> None:
        self._judges = judges
        self._trees = trees
        self._writer = writer
        self._deadline = deadline
        self._controls: dict[tuple[Tree, str], Run] = {}
        self._lock = threading.Lock()

    def run(self, begun: Begun, undecided: Iterator[Change]) -> str:
        """Build, run the controls and judge. Return why the slice is void, or an empty string."""
        with ThreadPoolExecutor(len(self._trees)) as pool:
            list(pool.map(lambda tree: tree.prepare(self._left_s()), self._trees))
            print(f"built; {self._left_s():.0f} s are left", flush=True)
            list(pool.map(self._control, self._trees))
            controls = {
                f"{name} in tree {number}": control
                for number, tree in enumerate(self._trees)
                for (where, name), control in self._controls.items()
                if where is tree
            }
            void = why_void((name, control.ended) for name, control in controls.items())
            times = {name: round(control.took_s, 1) for name, control in controls.items()}
            self._writer.begin_slice(
                begun, when=time.strftime("%Y-%m-%d %H:%M", time.gmtime()), controls=times, void=void
            )
            print(f"controls: {times}; {self._left_s():.0f} s are left", flush=True)
            if void:
                failed = [
                    control.printed[-_PRINTED:] for control in controls.values() if control.ended is not Ended.PASSED
                ]
                return "\n".join([void, *failed])
            list(pool.map(lambda tree: self._work(tree, undecided), self._trees))
        return ""

    def _left_s(self) -> float:
        return self._deadline - time.monotonic()

    def _control(self, tree: Tree) -> None:
        """Run all judges on the unmutated tree, while the other jobs do so, because later all judge in parallel."""
        for judge in self._judges:
            if not judge.control:
                # Without -x, to show all failures.
                command = [word for word in command_of(judge, tree.root) if word != "-x"]
                self._controls[tree, judge.name] = run(command, tree.root, tree.environment(), self._left_s())

    def _work(self, tree: Tree, undecided: Iterator[Change]) -> None:
        while self._left_s() > 0:
            with self._lock:
                change = next(undecided, None)
            if change is None:
                return
            try:
                judged = self._judge(tree, change)
            finally:
                tree.undo(change)
            if judged is not None:
                self._writer.add(judged)
                print(
                    f"{judged.verdict.value}: {change.path}:{change.line} {judged.by} ({judged.took_s:.0f} s)",
                    flush=True,
                )

    def _judge(self, tree: Tree, change: Change) -> Judged | None:
        """Return the verdict on a mutant; None if the slice ends first."""
        began = time.monotonic()
        made = tree.make(change, self._left_s())
        if self._left_s() <= 0:
            return None
        if made.ended is not Ended.PASSED:
            errors = [line for line in made.printed.splitlines() if "error" in line]
            return Judged(change, Verdict.INVALID, "".join(errors[:1])[-200:], round(time.monotonic() - began, 1))
        if tree.has_same_code(change):
            return Judged(change, Verdict.SAME, took_s=round(time.monotonic() - began, 1))
        steps: list[Step] = []
        by = ""
        for judge in self._judges:
            command = command_of(judge, tree.root, change) if judge.judges(change) else []
            if not command or verdict_of(steps) is not Verdict.SURVIVED:
                continue
            control_s = self._controls[tree, judge.control or judge.name].took_s
            limit_s = limit_of(control_s)
            found = self._run(judge, command, tree, limit_s)
            if found.ended is Ended.HANGS and self._left_s() <= 0:
                return None
            steps.append(Step(judge.noticed_by, found.ended, limit_s, control_s))
            if found.ended is not Ended.PASSED:
                by = f"{judge.name}: {_why(found)}"
        return Judged(change, verdict_of(steps), by, round(time.monotonic() - began, 1))

    def _run(self, judge: Judge, command: Sequence[str], tree: Tree, limit_s: float) -> Run:
        """Run the tests. Repeat a failed run of all tests, because a busy machine may have made it fail."""
        # If all related tests need a framework that is not installed, pytest runs no test.
        passes = (0, NO_TESTS) if judge.control else (0,)
        found = run(command, tree.root, tree.environment(), min(limit_s, self._left_s()), passes)
        if found.ended is Ended.FAILED and not judge.control:
            found = run(command, tree.root, tree.environment(), min(limit_s, self._left_s()), passes)
        return found


def _why(failed: Run) -> str:
    """Return the first failed test. If the output names none, as after a signal, return the exit code."""
    if failed.ended is Ended.HANGS or failed.code is None:
        return f"hang, killed after {failed.took_s:.0f} s"
    return first_failure(failed.printed) or f"exit code {failed.code}"


def undecided_of(picks: Iterator[Change], results: Results, count: int | None) -> Iterator[Change]:
    """Yield up to `count` mutants without a verdict, in the order of the seed."""
    found = 0
    for change in picks:
        if count is not None and found >= count:
            return
        if not results.is_decided(change):
            found += 1
            yield change


def trees_of(folder: Path, sources: Path, jobs: int, cores: int) -> list[Tree]:
    """Return a tree for each job, which share the given number of cores for compiling."""
    return [Tree(folder / str(number), sources, max(1, cores // jobs)) for number in range(jobs)]
