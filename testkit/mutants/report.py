# SPDX-License-Identifier: Apache-2.0
"""Report of a results file: the number of mutants that each kind of tests noticed, and the unnoticed mutants."""

from __future__ import annotations

from collections.abc import Mapping

from testkit.mutants import parts
from testkit.mutants.change import Key
from testkit.mutants.equivalents import MAX_SHARE
from testkit.mutants.results import Judged, Results
from testkit.mutants.verdicts import NOTICED, Verdict


def report(results: Results, equivalents: Mapping[Key, str]) -> str:
    """Return the report as text."""
    survivors = [one for one in results.of(Verdict.SURVIVED) if one.change.key not in equivalents]
    declared = [one for one in results.of(Verdict.SURVIVED) if one.change.key in equivalents]
    lines = [
        _about(results),
        *(f"{len(results.of(verdict)):>5} noticed by {verdict.value}" for verdict in NOTICED if results.of(verdict)),
        f"{len(survivors):>5} survived",
        f"{len(declared):>5} declared equivalent{_excess(len(declared), len(results.noticed()) + len(survivors))}",
        f"{len(results.of(Verdict.SAME)):>5} compiled to the same code (not counted)",
        f"{len(results.of(Verdict.INVALID)):>5} invalid: they do not compile (not counted)",
        f"{len(results.of(Verdict.VOID)):>5} void: a hang whose control took too long (not counted)",
        _rate("all", results.noticed(), survivors),
        *(_rate(part, _of(part, results.noticed()), _of(part, survivors)) for part in parts.WEIGHTS),
        *(_shown(one) for one in survivors),
    ]
    return "\n".join(lines)


def rate(noticed: int, survived: int) -> float:
    """Return the share of mutants that were noticed; 0 if none was judged."""
    return noticed / (noticed + survived) if noticed + survived else 0.0


def has_too_many_equivalents(declared: int, others: int) -> bool:
    """Return True if more than the allowed share of the judged mutants is declared equivalent."""
    return declared > MAX_SHARE * (declared + others)


def _about(results: Results) -> str:
    void = [one["void"] for one in results.slices if one.get("void")]
    seed = "no seed" if results.begun is None else f"seed {results.begun.seed}, judge {results.begun.judge}"
    return "\n".join([f"{seed}: {len(results.slices)} slices, {len(void)} of them void", *void])


def _of(part: str, judged: list[Judged]) -> list[Judged]:
    return [one for one in judged if one.change.path.startswith("engine/") == (part == parts.ENGINE)]


def _rate(title: str, noticed: list[Judged], survivors: list[Judged]) -> str:
    share = rate(len(noticed), len(survivors))
    return f"{share:5.0%} of {len(noticed) + len(survivors)} were noticed ({title})"


def _excess(declared: int, others: int) -> str:
    return f": more than {MAX_SHARE:.0%} of all" if has_too_many_equivalents(declared, others) else ""


def _shown(one: Judged) -> str:
    change = one.change
    return f"\n{change.path}:{change.line}\n- {change.before.strip()}\n+ {change.after.strip()}"
