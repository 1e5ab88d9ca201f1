# SPDX-License-Identifier: Apache-2.0
"""`make test` and `make test-all`: the tests that they select, the order of their parts, and their reports."""

import re
import subprocess
import sys

import pytest
from testkit.places import ROOT
from testkit.speed import MAX_FACTOR, scaled
from testkit.suite.parts import OLD, REST, TEST, Part
from testkit.suite.records import FOLDER_VARIABLE, Record, RecordWriter, read_records
from testkit.suite.running import Result, Suite
from testkit.suite.schedule import next_part, unreachable
from testkit.suite.selection import Known, OldVersion, Pick, picked
from testkit.suite.summary import summary


def test_picks_by_file_name_and_world():
    tests = [
        Known("tests/a/test_one.py", "test_x", "shm2"),
        Known("tests/a/test_one.py", "test_x", "tcp2"),
        Known("tests/a/deep/test_two.py", "test_y", "shm2"),
        Known("tests/b/test_one.py", "test_x"),
    ]
    assert picked([Pick("tests/a/*")], tests) == [True, True, True, False]
    assert picked([Pick("tests/a/*", worlds=("shm2",))], tests) == [True, False, True, False]
    assert picked([Pick("tests/*", names=("*_x",))], tests) == [True, True, False, True]
    assert picked([Pick("tests/*", first_only=True)], tests) == [True, False, True, True]
    assert picked([Pick("tests/*")], [Known("tests/c/test_z.py", "test_z", is_slow=True)]) == [False]
    assert picked([Pick("tests/*", promises=True)], [*tests, Known("tests/c/test_z.py", "test_z", is_promise=True)])[
        4:
    ] == [True]
    assert picked([Pick("tests/b/*"), Pick("tests/*", worlds=("tcp2",))], tests) == [False, True, False, True]


def test_an_old_version_runs_each_function_once_in_each_mode():
    old = OldVersion("tests/a/*", ("jit", "eager"), ("tcp2",), (Pick("tests/a/*", names=("test_random*",)),))
    chosen = {
        "tests/a/test_one.py": {"test_x[tcp2-jit-1]": False, "test_x[shm2-jit-1]": True, "test_x[shm2-jit-2]": False}
        | {"test_x[shm2-eager-2]": True, "test_random[shm2]": False, "test_y": True},
        "tests/a/test_two.py": {"test_x[shm2-jit-1]": True},
        "tests/b/test_one.py": {"test_x[1]": True, "test_x[2]": True},
    }
    tests = [
        Known(file, name, "tcp2" if "tcp2" in name else "shm2" if "shm2" in name else "")
        for file, names in chosen.items()
        for name in names
    ]
    assert old.picked(tests) == [is_chosen for names in chosen.values() for is_chosen in names.values()]
    assert old.picked([Known("tests/b/test_one.py", "test_x", is_slow=True)]) == [False]


def test_what_old_versions_leave_out_exists():
    for pick in OLD.left_out:
        source = (ROOT / pick.files).read_text(encoding="utf-8")
        for name in pick.names:
            assert f"def {name.partition('*')[0].partition('?')[0]}" in source, (pick.files, name)


def test_every_part_has_a_name_of_its_own_and_comes_after_known_ones():
    known = [part.name for part in (*TEST, *REST)]
    assert len(known) == len(set(known))
    for part in (*TEST, *REST):
        assert set(part.after) <= set(known[: known.index(part.name)])


def test_each_command_of_make_exists():
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    for part in (*TEST, *REST):
        for command in (" ".join(part.command), part.repeated_by()):
            if command.startswith("make "):
                assert f"\n{command.split()[1]}:" in targets, command


ONE, TWO, WAITS = Part("one", ""), Part("two", "", cores=2), Part("waits", "", cores=0)
ALONE, LATER = Part("alone", "", is_alone=True), Part("later", "", after=("one",))


@pytest.mark.parametrize(
    ("waiting", "running", "succeeded", "chosen"),
    [
        ([ONE, TWO], [], [], ONE),
        ([TWO, ONE], [ONE], [], None),  # wait for two cores; otherwise small parts would always overtake this part
        ([TWO, WAITS], [ONE], [], WAITS),
        ([WAITS], [WAITS], [], None),
        ([ONE], [ONE, ONE], [], None),
        ([ONE], [ONE, WAITS], [], ONE),
        ([LATER], [], [], None),
        ([LATER], [], ["one"], LATER),
        ([ALONE], [ONE], [], None),
        ([ONE], [ALONE], [], None),
        ([WAITS], [ALONE], [], None),
        ([ALONE], [], [], ALONE),
    ],
)
def test_which_part_starts(waiting, running, succeeded, chosen):
    assert next_part(waiting, running, succeeded) is chosen


def test_parts_behind_a_failed_one_are_unreachable():
    last = Part("last", "", after=("later",))
    assert unreachable([LATER, last, TWO], ["one"]) == [LATER, last]


def test_records_are_read_back_and_unfinished_lines_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    writer = RecordWriter()
    writer.plan(7)
    writer.write(record := Record("tests/unit/test_a.py::test_b", "passed", 0.5, ranks=2))
    (tmp_path / "other.jsonl").write_text('{"planned": 3}\n{"test": "half of a li')
    assert read_records(tmp_path) == ([record], 10)


def test_a_suite_goes_on_after_a_failure_but_not_behind_it(tmp_path, capsys):
    good = Part("good", "", (sys.executable, "-c", "print('fine')"))
    bad = Part("bad", "", (sys.executable, "-c", "print('the reason'); raise SystemExit(3)"), repeat="make bad")
    behind = Part("behind", "", ("never",), after=("bad",))
    results = Suite([bad, behind, good], tmp_path, tmp_path).run()
    assert {result.part.name: result.code for result in results} == {"bad": 3, "behind": None, "good": 0}
    assert "the reason" in capsys.readouterr().out
    text = summary(results, {"the rest": "make rest"}, 1.0)
    assert "make bad" in text
    assert "make rest" in text
    assert "behind" in text
    assert text.splitlines()[-3] == "FAILED"


def test_a_part_that_has_passed_runs_again_only_with_another_program(tmp_path, capsys):
    part = Part("one", "", (sys.executable, "-c", "print('it runs')"), program="program")
    unchanged = []
    for content in ("a", "a", "b", "b"):
        (tmp_path / "program").write_text(content)
        unchanged += [result.is_unchanged for result in Suite([part], tmp_path, tmp_path).run()]
    assert unchanged == [False, True, False, True]


def test_processor_time_is_counted_for_each_part(tmp_path, capsys):
    busy = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    spin = "import time\nwhile time.process_time() < 0.5: pass"
    parts = [
        Part("busy", "", (sys.executable, "-c", busy, spin)),
        Part("waits", "", (sys.executable, "-S", "-c", "import time; time.sleep(0.5)")),
    ]
    used = {result.part.name: result.processor_s for result in Suite(parts, tmp_path, tmp_path).run()}
    assert used["busy"] >= 0.5 > used["waits"] > 0


def test_the_summary_counts_by_folder_and_names_the_command_that_repeats_a_failure():
    records = [
        Record("tests/a/test_x.py::test_1", "passed", 1.4, ranks=2, python=".venv/bin/python"),
        Record("tests/a/test_x.py::test_2[b c]", "failed", 1.4, ranks=4, retries=2, python=".venv/bin/python"),
    ]
    part = Part("ranks", "real ranks", env={"HOROVOD_TEST_DOORS": "torch"})
    text = summary([Result(part, 9.0, 1, None, records)], {}, 12.0)
    assert re.search(r"^tests/a +3 +2 +6 +2$", text, re.MULTILINE)
    assert "HOROVOD_TEST_DOORS=torch .venv/bin/python -m pytest 'tests/a/test_x.py::test_2[b c]'" in text


@pytest.mark.parametrize(
    ("base", "load", "cores", "factor"), [(0.5, 0.1, 2, 1), (1.5, 1, 2, 1.5), (1, 5, 2, 2.5), (2, 30, 2, MAX_FACTOR)]
)
def test_limits_grow_with_slow_processors_and_with_load(base, load, cores, factor):
    assert scaled(base, load, cores) == factor


def test_all_that_the_suite_needs_before_anything_is_installed_is_in_the_standard_library():
    names = "('pytest', 'psutil', 'horovod')"
    source = f"import testkit.suite.main, sys; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-S", "-c", source], cwd=ROOT, text=True, capture_output=True, check=True)
    assert done.stdout.strip() == "[]"
