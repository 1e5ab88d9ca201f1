# SPDX-License-Identifier: Apache-2.0
"""Suggestions for misspelt flags, commands and programs, and explanations of programs that cannot be run."""

import errno
import os

import pytest
from typer.testing import CliRunner

from horovod.common.suggestions import did_you_mean
from horovod.launcher.launch import parse_args
from horovod.launcher.start.limits import explain_shortage
from horovod.launcher.start.not_run import StartError, explained, interpreter_in
from horovod.tools.cli import app


def test_the_nearest_name_is_suggested_and_none_that_is_far():
    assert (
        did_you_mean("HOROVOD_CYCLE_TIM", ["HOROVOD_RANK", "HOROVOD_CYCLE_TIME"])
        == "; did you mean HOROVOD_CYCLE_TIME?"
    )
    assert did_you_mean("x", ["HOROVOD_RANK"]) == ""
    assert did_you_mean("x" * 10_000_000, ["HOROVOD_RANK"]) == ""


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--timline-filename", "--timeline-filename"),
        ("--timline-filename=x", "--timeline-filename"),
        ("--num_proc", "--num-proc"),
        ("--np", "-np"),
        ("-hosts", "--hosts"),
        ("-verbose", "--verbose"),
        ("--no-stall-chek", "--no-stall-check"),
    ],
)
def test_horovodrun_suggests_the_flag_that_was_meant(capsys, flag, meant):
    with pytest.raises(SystemExit) as ended:
        parse_args(["-np", "2", flag, "x", "python", "train.py"])
    assert ended.value.code == 2
    name = flag.partition("=")[0]
    assert f"error: unrecognized arguments: {name}; did you mean {meant}?\n" in capsys.readouterr().err


def test_a_flag_like_no_other_gets_no_suggestion(capsys):
    with pytest.raises(SystemExit):
        parse_args(["-np", "2", "--qqqqq", "python"])
    assert capsys.readouterr().err.endswith("error: unrecognized arguments: --qqqqq\n")


@pytest.mark.parametrize("words", [["-p22"], ["-ikey"], ["--verb"], ["--num-p=2"]])
def test_abbreviations_and_values_without_a_blank_are_no_mistakes(words):
    assert parse_args(["-np", "2", *words, "true"]).command == ["true"]


def test_an_abbreviation_of_several_flags_is_called_ambiguous(capsys):
    with pytest.raises(SystemExit):
        parse_args(["-np", "2", "--stall", "true"])
    assert "ambiguous option: --stall could match" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["docter"], "doctor"),
        (["timeline", "merg"], "merge"),
        (["doctor", "--jsn"], "--json"),
        (["test", "--transprt", "tcp"], "--transport"),
    ],
)
def test_hvd_suggests_the_command_or_the_option_that_was_meant(words, meant):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert meant in done.output
    assert any(words in done.output for words in ("Did you mean", "Possible options"))


def not_run(number, *command):
    return explained(OSError(number, os.strerror(number), command[0]), command)


@pytest.fixture
def program(tmp_path):
    def make(start, name="program"):
        path = tmp_path / name
        path.write_bytes(start)
        path.chmod(0o755)
        return str(path)

    return make


def test_a_misspelt_program_is_compared_with_those_in_path(tmp_path, monkeypatch, program):
    program(b"", "trainer")
    monkeypatch.setenv("PATH", f"/no/such/folder:{tmp_path}")
    assert not_run(errno.ENOENT, "trianer", "x") == ("command not found: 'trianer'; did you mean trainer?", 127)
    assert not_run(errno.ENOENT, "something-else") == ("command not found: 'something-else'", 127)
    assert not_run(errno.ENOENT, "./trianer") == ("command not found: './trianer'", 127)


def test_the_missing_interpreter_of_a_script_is_named(program):
    text, code = not_run(errno.ENOENT, program(b"#! /no/such/python -u\nprint()\n"))
    assert code == 127
    assert text.endswith(
        "/program': its first line names the interpreter '/no/such/python', which does not exist here; install it or "
        "correct that line"
    )


def test_the_line_ends_of_windows_are_named_with_the_remedy(program):
    script = program(b"#!/bin/sh\r\ntrue\r\n")
    text, _ = not_run(errno.ENOENT, script)
    assert "the interpreter '/bin/sh\\r', which does not exist here; the file has the line ends of Windows" in text
    assert text.endswith(f"remove them: sed -i 's/\\r$//' {script}")


def test_an_interpreter_that_is_no_program_is_named(program):
    text, code = not_run(errno.EACCES, program(b"#!/etc/passwd\n"))
    assert "the interpreter '/etc/passwd', which is not a program here" in text
    assert code == 126


def test_a_program_of_another_system_is_called_that(program):
    text, _ = not_run(errno.ENOENT, program(b"\x7fELF\x02\x01"))
    assert text.endswith("the file is there, but it is made for another system: its loader is missing here")


def test_a_program_for_another_processor_is_called_that(program):
    text, code = not_run(errno.ENOEXEC, program(b"\x7fELF\x02\x01"))
    assert text.endswith("the file is there, but it is built for another processor")
    assert code == 126


def test_a_file_that_may_not_be_run_is_not_called_misspelt(tmp_path, monkeypatch):
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not_run(errno.EACCES, "tool") == ("permission denied: 'tool'", 126)
    path = str(tmp_path / "tool")
    assert not_run(errno.EACCES, path) == (f"permission denied: {path!r}; make it executable: chmod +x", 126)


def test_files_of_this_machine_explain_nothing_about_another_host(program):
    script = program(b"#! /no/such/python\n")
    error = StartError(errno.ENOENT, "rank 1 could not be started on far", script, "far")
    assert explained(error, [script]) == (f"command not found on host far: {script!r}", 127)
    assert explain_shortage(StartError(errno.EAGAIN, "no room on far", "true", "far")).endswith(
        "no room on far: 'true'"
    )


def test_a_script_whose_interpreter_is_there_is_blamed_for_nothing(program):
    script = program(b"#!/bin/sh\n")  # the failure may have been on another host, where the interpreter is missing
    assert not_run(errno.ENOENT, script) == (f"command not found: {script!r}", 127)


def test_errors_of_other_files_are_not_the_commands():
    assert explained(OSError(errno.ENOENT, "no", "hosts"), ["true"]) is None
    assert explained(OSError(errno.EAGAIN, "no", "true"), ["true"]) is None


@pytest.mark.parametrize(
    ("start", "interpreter"),
    [(b"#!/bin/sh\n", "/bin/sh"), (b"#!\t/bin/env\tx y", "/bin/env"), (b"#!\n", None), (b"", None), (b"print()", None)],
)
def test_the_interpreter_in_a_first_line(start, interpreter):
    assert interpreter_in(start) == interpreter
