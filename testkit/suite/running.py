# SPDX-License-Identifier: Apache-2.0
"""Execution of parts in parallel, with their output saved and their progress shown."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from testkit.suite.parts import Part
from testkit.suite.records import FOLDER_VARIABLE, Record, read_records
from testkit.suite.schedule import next_part, unreachable
from testkit.suite.unchanged import Passed

LOOK_EVERY_S = 0.2
LINE_EVERY_S = 60.0  # interval of progress lines if the output is no terminal
_OBJECT = "Building CXX object"


@dataclass
class Result:
    """Result of a part.

    Args:
        seconds: Time from its start to its end; None if it was not started.
        processor_s: Seconds of processor time that it and its children have used.
    """

    part: Part
    seconds: float | None = None
    code: int | None = None
    log: Path | None = None
    records: list[Record] = field(default_factory=list)
    objects: int = 0  # number of compiled objects
    is_unchanged: bool = False  # True if it was left out because it has passed with this version of the program
    processor_s: float = 0.0

    @property
    def has_failed(self) -> bool:
        return self.code not in (0, None)


class Running:
    """Process of a part, with its log and the records of its tests."""

    def __init__(self, part: Part, folder: Path, python: Path) -> None:
        self.part = part
        self.log = folder / f"{part.name}.log"
        self._records = folder / part.name
        shutil.rmtree(self._records, ignore_errors=True)
        self._records.mkdir(parents=True)
        self.began = time.monotonic()
        self._processor_s = 0.0
        environment = {**os.environ, **part.env, FOLDER_VARIABLE: str(self._records)}
        environment.pop("MAKEFLAGS", None)  # an outer make's job server must not control the part's make
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                part.words(python),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
            )

    def has_ended(self) -> bool:
        """Return True if the process has ended, and measure its processor time.

        The system adds a child's processor time only when the child is waited for, so it must be read before and after.
        """
        before = _processor_time_of_children()
        if self.process.poll() is None:
            return False
        self._processor_s += _processor_time_of_children() - before
        return True

    def progress(self) -> str:
        records, planned = read_records(self._records)
        return f"{self.part.name} {len(records)}/{planned}" if planned else self.part.name

    def result(self) -> Result:
        text = self.log.read_text(encoding="utf-8", errors="replace")
        records, _ = read_records(self._records)
        seconds = time.monotonic() - self.began
        return Result(
            self.part,
            seconds,
            self.process.returncode,
            self.log,
            records,
            text.count(_OBJECT),
            processor_s=self._processor_s,
        )

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait()


def _processor_time_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Suite:
    """State of one run: parts that wait, parts that run, and results."""

    def __init__(self, parts: Sequence[Part], build: Path, python: Path, out: TextIO | None = None) -> None:
        self._passed = Passed(build)
        self._waiting = list(parts)
        self._running: list[Running] = []
        self._folder = build / "suite"
        self._python = python
        self._out = out or sys.stdout
        self._began = time.monotonic()
        self._line_at = self._began + LINE_EVERY_S
        self.results: list[Result] = []
        self._folder.mkdir(parents=True, exist_ok=True)

    def run(self) -> list[Result]:
        """Run all parts that can run, and return the result of each part."""
        try:
            while self._waiting or self._running:
                self._drop_unreachable()
                self._start()
                self._collect()
                self._show_progress()
                time.sleep(LOOK_EVERY_S)
        finally:
            for running in self._running:
                running.end()
        return self.results

    def _drop_unreachable(self) -> None:
        failed = [result.part.name for result in self.results if result.has_failed]
        for part in unreachable(self._waiting, failed):
            self._waiting.remove(part)
            self.results.append(Result(part))

    def _start(self) -> None:
        succeeded = {result.part.name for result in self.results if result.code == 0}
        while part := next_part(self._waiting, [running.part for running in self._running], succeeded):
            self._waiting.remove(part)
            if self._passed.has(part):
                self._say(f"{part.name} has passed with the same program")
                self.results.append(Result(part, 0.0, 0, is_unchanged=True))
                return
            self._running.append(Running(part, self._folder, self._python))
            self._say(f"start {part.name}: {part.title}")

    def _collect(self) -> None:
        for running in [running for running in self._running if running.has_ended()]:
            self._running.remove(running)
            result = running.result()
            self.results.append(result)
            if not result.has_failed:
                self._passed.add(result.part)
            word = "FAILED" if result.has_failed else "done"
            self._say(f"{word} {result.part.name} after {result.seconds:.0f} s")
            if result.has_failed:
                self._say(
                    f"the output of {result.part.name} ({result.log}):\n{running.log.read_text(errors='replace')}"
                )

    def _say(self, text: str) -> None:
        seconds = time.monotonic() - self._began
        clear = "\r\x1b[K" if self._out.isatty() else ""
        print(f"{clear}[{seconds // 60:3.0f}:{seconds % 60:02.0f}] {text}", file=self._out, flush=True)

    def _show_progress(self) -> None:
        text = " | ".join(running.progress() for running in self._running)
        if self._out.isatty():
            columns = shutil.get_terminal_size().columns
            seconds = time.monotonic() - self._began
            line = f"[{seconds // 60:3.0f}:{seconds % 60:02.0f}] {text}"[: columns - 1]
            print(f"\r\x1b[K{line}", end="", file=self._out, flush=True)
        elif time.monotonic() > self._line_at and text:
            self._line_at = time.monotonic() + LINE_EVERY_S
            self._say(text)
