# SPDX-License-Identifier: Apache-2.0
"""Strict reader of timelines: it checks the rules of the Chrome trace event format, which viewers do not enforce."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class Trace:
    """Timeline that follows the rules, with the names of its tensors and the events of each."""

    def __init__(self, path: Path, finished: bool = True) -> None:
        self.events: list[Event] = json.loads(path.read_text(encoding="utf-8"))
        self.names: dict[int, str] = {}
        self.start = 0
        self._open: dict[int, list[Event]] = {}
        self._last: dict[int, float] = {}
        for event in self.events:
            self._check(event)
        assert not finished or not any(self._open.values()), f"slices that never end: {self._open}"

    def of(self, name: str) -> list[Event]:
        """Return the events of a tensor, without those that name it."""
        pids = [pid for pid, process in self.names.items() if process == name]
        assert len(pids) == 1, f"{name!r} is not one of {sorted(self.names.values())}"
        return [event for event in self.events if event["pid"] == pids[0] and event["ph"] != "M"]

    def story(self, name: str) -> str:
        """Return a tensor's events in short form: `(` begins a slice, `)` ends it, a number is a rank."""
        short = {"B": "({name} ", "E": ") ", "X": "{name} "}
        return "".join(short[event["ph"]].format_map({"name": "", **event}) for event in self.of(name)).strip()

    def _check(self, event: Event) -> None:
        assert isinstance(event, dict)
        assert set(event) <= {"ph", "pid", "tid", "ts", "dur", "name", "args", "s"}, event
        pid = event["pid"]
        assert type(pid) is int
        assert type(event["tid"]) is int
        assert isinstance(event.get("name", ""), str)
        assert isinstance(event.get("args", {}), dict)
        if event["ph"] == "M":
            return self._check_metadata(event)
        assert pid in self.names, f"happens before its process has a name: {event}"
        assert type(event["ts"]) in (int, float)
        assert event["ts"] >= self._last.get(pid, 0), f"back in time: {event}"
        self._last[pid] = event["ts"]
        if event["ph"] == "B":
            assert event["name"]
            return self._open.setdefault(pid, []).append(event)
        if event["ph"] == "E":
            assert self._open.get(pid), f"ends what never began: {event}"
            self._open[pid].pop()
            return None
        assert event["name"]
        if event["ph"] == "X":
            assert event["dur"] == 0
        elif event["ph"] == "i":
            assert (pid, event["s"], event["name"]) == (0, "g", "CYCLE_START")
        else:
            assert event["ph"] == "C", event
            assert all(type(value) is int for value in event["args"].values())
        return None

    def _check_metadata(self, event: Event) -> None:
        assert "ts" not in event
        if event["name"] == "process_name":
            assert event["pid"] not in self.names
            self.names[event["pid"]] = event["args"]["name"]
            if event["pid"] == 0:
                self.start = event["args"]["start_time_since_epoch_in_micros"]
                assert type(self.start) is int
        else:
            assert event["name"] == "process_sort_index"
            assert type(event["args"]["sort_index"]) is int
