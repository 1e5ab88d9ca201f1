# SPDX-License-Identifier: Apache-2.0
"""Results of a seed: a file of JSON lines, one for each slice and each mutant, to which later slices append."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from testkit.mutants.change import Change
from testkit.mutants.verdicts import NOTICED, Verdict


@dataclass(frozen=True)
class Begun:
    """Header of a results file. All slices in a file must agree on it."""

    seed: int
    sources: str  # digest of the files from which mutants are selected
    judge: str


@dataclass(frozen=True)
class Judged:
    """Mutant and its verdict. `by`: the test that noticed it; for an invalid mutant, the compiler's last line."""

    change: Change
    verdict: Verdict
    by: str = ""
    took_s: float = 0.0


@dataclass
class Results:
    """Contents of a results file."""

    begun: Begun | None = None
    slices: list[dict[str, Any]] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)

    def is_decided(self, change: Change) -> bool:
        return any(one.change.key == change.key for one in self.judged if one.verdict is not Verdict.VOID)

    def of(self, *verdicts: Verdict) -> list[Judged]:
        return [one for one in self.judged if one.verdict in verdicts]

    def noticed(self) -> list[Judged]:
        return self.of(*NOTICED)


def read(path: Path) -> Results:
    """Return the contents of a file that may not exist. Ignore an incomplete line."""
    results = Results()
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if found.pop("is") == "slice":
            results.begun = results.begun or Begun(*(found[name] for name in ("seed", "sources", "judge")))
            results.slices.append(found)
        else:
            verdict = Verdict(found.pop("verdict"))
            results.judged.append(Judged(Change(**found.pop("change")), verdict, **found))
    return results


class Writer:
    """Writer that appends lines to a results file. Several threads may use it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.read_bytes().endswith(b"\n"):
            path.write_bytes(path.read_bytes() + b"\n")  # ends the incomplete line of a killed slice

    def begin_slice(self, begun: Begun, **facts: Any) -> None:
        self._add({"is": "slice", **asdict(begun), **facts})

    def add(self, judged: Judged) -> None:
        self._add({"is": "mutant", **asdict(judged), "verdict": judged.verdict.value})

    def _add(self, line: dict[str, Any]) -> None:
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
