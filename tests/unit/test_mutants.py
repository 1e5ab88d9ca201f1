# SPDX-License-Identifier: Apache-2.0
"""scripts/mutants: the choice of mutants by seed, the continuation of a slice, and the verdicts."""

import itertools
import os
import re
import sys
import time
from pathlib import Path

import pytest
from testkit.mutants import equivalents, parts, picks, results, trees
from testkit.mutants.change import Change
from testkit.mutants.judges import JUDGES, Judge, command_of, first_failure, related_tests
from testkit.mutants.report import has_too_many_equivalents, rate, report
from testkit.mutants.runs import Run, run
from testkit.mutants.slices import Slice, undecided_of
from testkit.mutants.verdicts import Ended, Step, Verdict, is_hang_a_result, limit_of, verdict_of, why_void
from testkit.places import ROOT


def change(line: int = 1, before: str = "a < b", path: str = "engine/core/x.cc") -> Change:
    return Change(path, line, before, before.replace("<", "<="), "operator")


CHANGES = picks.all_changes(ROOT)


EVERY = [change for lines in CHANGES.values() for found in lines for change in found]


def test_a_line_that_reads_differently_is_not_changed() -> None:
    with pytest.raises(ValueError, match="is not 'a < b'"):
        change(line=2).apply_to("a < b\nb < a\n")
    assert change(line=2).apply_to("x\na < b\r\nx") == "x\na <= b\r\nx"


def test_a_seed_always_picks_the_same_mutants_and_another_seed_others() -> None:
    first, again, other = (list(itertools.islice(picks.picked(CHANGES, seed), 200)) for seed in (1, 1, 2))
    assert first == again
    assert len({(one.path, one.line) for one in first}) == 200
    assert len(set(first) & set(other)) < 30
    engine = [one for one in first if one.path.startswith("engine/")]
    assert 120 < len(engine) < 180


def test_picks_end_when_each_line_was_picked() -> None:
    one, two = [change(1)], [change(2, path="src/horovod/x.py")]
    assert set(picks.picked({parts.ENGINE: [one], parts.PYTHON: [two]}, 7)) == {*one, *two}


def test_all_listed_files_exist_and_none_needs_what_judges_have_not() -> None:
    files = parts.engine_files(ROOT, "x86_64")
    assert all((ROOT / path).exists() for path in parts.python_files())
    assert {"engine/agreement/validate.cc", "engine/transport/lane.h"} <= set(files)
    assert not [path for path in files if re.search("nccl|neon|foreign|avx512", path)]
    assert "engine/collectives/kernels_avx2.cc" not in parts.engine_files(ROOT, "aarch64")
    for left_out in (*parts._GPU_ONLY, *parts._MPI_ONLY):
        assert list((ROOT / "engine").glob(f"{left_out}.*")), left_out


def test_a_second_slice_goes_on_with_the_next_undecided_mutant(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    mutants = [change(line) for line in range(1, 6)]
    mutants = [Change(one.path, one.line, f"{one.line} < b", f"{one.line} <= b", "operator") for one in mutants]
    writer = results.Writer(file)
    begun = results.Begun(seed=3, sources="abc", judge="full")
    writer.begin_slice(begun, void="", controls={})
    writer.add(results.Judged(mutants[0], Verdict.UNIT, "a test", 1.5))
    writer.add(results.Judged(mutants[1], Verdict.VOID))
    writer.add(results.Judged(mutants[2], Verdict.SURVIVED))
    with file.open("a") as opened:
        opened.write('{"is": "mutant", "verd')  # the process was killed while it wrote this line
    found = results.read(file)
    assert found.begun == begun
    assert found.judged[0] == results.Judged(mutants[0], Verdict.UNIT, "a test", 1.5)
    assert list(undecided_of(iter(mutants), found, None)) == [mutants[1], *mutants[3:]]
    assert list(undecided_of(iter(mutants), found, 2)) == [mutants[1], mutants[3]]
    assert list(undecided_of(iter(mutants), results.read(tmp_path / "none"), None)) == mutants


def test_results_that_follow_a_line_cut_short_are_read(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    file.write_text('{"is": "mutant", "verd')
    results.Writer(file).add(results.Judged(change(), Verdict.UNIT))
    assert [one.verdict for one in results.read(file).judged] == [Verdict.UNIT]


def step(ended: Ended, by: Verdict = Verdict.UNIT, limit_s: float = 30, control_s: float = 10) -> Step:
    return Step(by, ended, limit_s, control_s)


def test_the_first_run_that_does_not_pass_gives_the_verdict() -> None:
    passed, failed = step(Ended.PASSED), step(Ended.FAILED, Verdict.RANKS)
    assert verdict_of([]) is Verdict.SURVIVED
    assert verdict_of([passed, passed]) is Verdict.SURVIVED
    assert verdict_of([passed, failed]) is Verdict.RANKS
    assert verdict_of([step(Ended.FAILED), failed]) is Verdict.UNIT


def test_a_hang_counts_only_if_the_control_passed_within_half_the_limit() -> None:
    assert verdict_of([step(Ended.HANGS, limit_s=20, control_s=10)]) is Verdict.UNIT
    assert verdict_of([step(Ended.HANGS, limit_s=20, control_s=10.1)]) is Verdict.VOID
    assert verdict_of([step(Ended.PASSED), step(Ended.HANGS, Verdict.RANKS, 5, 4)]) is Verdict.VOID
    for control_s in (0.1, 10, 1000):
        assert is_hang_a_result(control_s, limit_of(control_s))


def test_a_slice_whose_control_does_not_pass_is_void() -> None:
    assert why_void([("a", Ended.PASSED), ("b", Ended.PASSED)]) == ""
    assert why_void([("a", Ended.PASSED), ("b", Ended.FAILED)]) == "without any mutant: b failed"
    assert why_void([("a", Ended.HANGS)]) == "without any mutant: a hangs"


def test_the_report_counts_and_shows_survivors() -> None:
    survivor, equivalent = change(7), Change("engine/core/y.cc", 8, "  c < d", "  c <= d", "operator")
    judged = [
        *(results.Judged(change(line), Verdict.UNIT) for line in range(6)),
        results.Judged(change(6), Verdict.RANKS),
        results.Judged(change(9, path="src/horovod/common/rules.py"), Verdict.SURVIVED),
        results.Judged(survivor, Verdict.SURVIVED),
        results.Judged(equivalent, Verdict.SURVIVED),
        results.Judged(change(10), Verdict.INVALID),
        results.Judged(change(11), Verdict.SAME),
    ]
    found = results.Results(results.Begun(4, "", "full"), [{"void": ""}, {"void": "why"}], judged)
    text = report(found, {equivalent.key: "a reason"})
    assert text.startswith("seed 4, judge full: 2 slices, 1 of them void\nwhy\n")
    for line in (
        "6 noticed by unit tests",
        "1 noticed by rank tests",
        "2 survived",
        "1 declared equivalent",
        "1 invalid",
    ):
        assert line in text
    assert "  78% of 9 were noticed (all)\n  88% of 8 were noticed (engine)\n   0% of 1 were noticed (python)" in text
    assert "engine/core/x.cc:7\n- a < b\n+ a <= b" in text
    assert "y.cc" not in text
    assert rate(0, 0) == 0
    assert has_too_many_equivalents(2, 9)
    assert not has_too_many_equivalents(1, 9)


def test_equivalent_mutants_are_read_with_their_reasons(tmp_path: Path) -> None:
    file = tmp_path / "equivalent.txt"
    file.write_text(
        "# about\n\na/b.cc (2)\n- x < 1;\n+ x <= 1;\n= It is never 1,\n  by construction.\n\nc.py\n- a\n+ b\n= So.\n"
    )
    found = equivalents.read(file)
    assert [tuple(key) for key in found] == [("a/b.cc", "x < 1;", "x <= 1;", 2), ("c.py", "a", "b", 1)]
    file.write_text("a/b.cc\n- x < 1;\n= no line after\n")
    with pytest.raises(ValueError, match="expected a path"):
        equivalents.read(file)


def test_the_equivalent_mutants_that_are_declared_exist() -> None:
    declared = set(equivalents.read(ROOT / equivalents.FILE))
    assert all((ROOT / key.path).exists() for key in declared)
    # Kernels for other processors are not mutated on this machine.
    here = {key for key in declared if key.path in (*parts.engine_files(ROOT), *parts.python_files())}
    assert here <= {change.key for change in EVERY}


def test_judges_run_the_tests_of_the_mutated_file_first() -> None:
    lane = change(path="engine/transport/lane.cc")
    related, others, ranks = (judge for judge in JUDGES["full"] if judge.judges(lane))
    assert any(word.startswith("--source-file=") and "lane_test.cc" in word for word in command_of(related, ROOT, lane))
    assert any(word.startswith("--source-file-exclude=*engine/tests/") for word in command_of(others, ROOT, lane))
    assert not any("source-file" in word for word in command_of(others, ROOT))
    assert command_of(related, ROOT, change(path="engine/core/driver.cc")) == []
    assert "tests/parallel/test_allreduce.py" in command_of(ranks, ROOT, lane)
    rules = change(path="src/horovod/common/rules.py")
    related, others, ranks = (judge for judge in JUDGES["full"] if judge.judges(rules))
    assert "tests/unit/test_rules.py" in related_tests(ROOT, rules.path)
    assert "--ignore=tests/unit/test_rules.py" not in command_of(related, ROOT, rules)
    assert "--ignore=tests/unit/test_slots.py" in command_of(related, ROOT, rules)
    assert "--ignore=tests/unit/test_rules.py" in command_of(others, ROOT, rules)
    assert "--ignore=tests/unit/test_slots.py" not in command_of(others, ROOT, rules)
    assert all("test_mutants" in word for word in command_of(others, ROOT) if "--ignore" in word)
    slots = change(path="src/horovod/common/slots.py")
    assert [judge.noticed_by for judge in JUDGES["full"] if judge.judges(slots)] == [Verdict.UNIT, Verdict.UNIT]


@pytest.mark.parametrize("name", list(JUDGES))
def test_every_judge_has_a_control(name: str) -> None:
    names = [judge.name for judge in JUDGES[name]]
    assert len(names) == len(set(names))
    assert all(not judge.control or judge.control in names for judge in JUDGES[name])


def test_the_first_failure_is_named() -> None:
    assert first_failure("x\nFAILED tests/unit/test_a.py::test_b - assert\n") == "tests/unit/test_a.py::test_b"
    assert first_failure("engine/a_test.cc:1:\nTEST CASE:  lane: posts\n\nTEST CASE:  more\n") == "lane: posts"
    assert first_failure("one\ntwo\n") == "two"
    assert first_failure("") == ""


def test_a_run_of_all_tests_that_fails_is_repeated_and_one_of_related_tests_is_not(tmp_path: Path) -> None:
    part = Slice([], [], results.Writer(tmp_path / "results"), time.monotonic() + 60)
    tree = trees.Tree(tmp_path, tmp_path)
    tree.root.mkdir()
    all_tests, related = Judge("all", Verdict.UNIT, (), ()), Judge("few", Verdict.UNIT, (), (), control="all")
    fails_once = ["sh", "-c", "echo >> count; test $(wc -l < count) = 2"]
    assert part._run(related, fails_once, tree, 10).ended is Ended.FAILED
    (tree.root / "count").unlink()
    assert part._run(all_tests, fails_once, tree, 10).ended is Ended.PASSED
    assert part._run(all_tests, ["false"], tree, 10).ended is Ended.FAILED


class TreeWithoutSources(trees.Tree):
    """Tree that applies no change, so that each mutant survives if the control passes."""

    def prepare(self, limit_s: float) -> None:
        self.root.mkdir(parents=True)

    def make(self, change: Change, limit_s: float) -> Run:
        return Run(Ended.PASSED, 0.0, "")

    def undo(self, change: Change) -> None:
        pass

    def has_same_code(self, change: Change) -> bool:
        return False


@pytest.mark.parametrize("command", ["true", "false"])
def test_jobs_share_the_mutants_of_a_slice_unless_its_control_fails(tmp_path: Path, command: str) -> None:
    judge = Judge("all", Verdict.UNIT, (command,), (parts.ENGINE,))
    jobs = [TreeWithoutSources(tmp_path / str(number), ROOT) for number in range(3)]
    file = tmp_path / "results.jsonl"
    mutants = [Change("engine/core/x.cc", line, f"{line} < b", f"{line} <= b", "operator") for line in range(10)]
    part = Slice([judge], jobs, results.Writer(file), time.monotonic() + 60)
    void = part.run(results.Begun(1, "", "full"), iter(mutants))
    found = results.read(file)
    if command == "true":
        assert void == ""
        assert sorted(one.change.line for one in found.of(Verdict.SURVIVED)) == list(range(10))
    else:
        assert void.startswith("without any mutant: all in tree 0 failed, all in tree 1 failed")
        assert found.slices[0]["void"]
        assert not found.judged


def test_a_mirror_is_equal_with_its_times(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    (source / "in").mkdir(parents=True)
    (source / "in" / "kept").write_text("1")
    (source / "changed").write_text("1")
    trees.mirror(source, target)
    before = (source / "changed").stat().st_mtime_ns
    (target / "changed").write_text("2")
    (target / "extra").write_text("x")
    trees.mirror(source, target)
    assert (target / "changed").read_text() == "1"
    assert (target / "changed").stat().st_mtime_ns == before
    assert sorted(path.name for path in target.rglob("*")) == ["changed", "in", "kept"]


def test_only_sources_are_copied_and_what_replaces_another_text_is_new(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    for path in ("x.cc", "y.cc", ".venv-old/z.cc", "build/z.cc", "p/__pycache__/z.pyc"):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text("1")
        os.utime(source / path, (1, 1))
    target.mkdir()
    (target / "y.cc").write_text("0")
    (target / "gone.cc").write_text("0")
    (target / "built.so").write_text("0")
    trees.copy_changed(source, target)
    assert sorted(str(path.relative_to(target)) for path in target.rglob("*")) == ["built.so", "x.cc", "y.cc"]
    assert (target / "x.cc").stat().st_mtime == 1
    assert (target / "y.cc").stat().st_mtime > time.time() - 60


def test_a_run_ends_at_its_limit_with_all_that_it_has_started(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    child = "import time; time.sleep(100)"
    parent = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {child!r}], start_new_session=True)
open({str(file)!r}, "w").write(str(child.pid))
print("started", flush=True)
time.sleep(100)
"""
    done = run([sys.executable, "-c", parent], tmp_path, {}, 6)  # six seconds are enough for both processes to start
    assert done.ended is Ended.HANGS
    assert done.printed == "started\n"
    stat = Path(f"/proc/{file.read_text()}/stat")
    assert not stat.exists() or stat.read_text().split()[2] == "Z"
    assert run(["false"], tmp_path, {}, 10).ended is Ended.FAILED
    assert run(["sh", "-c", 'test "$WORD" = x'], tmp_path, {"WORD": "x"}, 10).ended is Ended.PASSED
