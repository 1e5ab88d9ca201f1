# SPDX-License-Identifier: Apache-2.0
"""horovod.runner.launch._run(args): jobs of programs that build Horovod's argument object themselves."""

import os
import sys

import pytest

from horovod.runner import _HorovodArgs
from horovod.runner.launch import _run, parse_args

FAILED = "^Horovod detected that one or more processes exited with non-zero status"


def rank():
    import os

    return int(os.environ["HOROVOD_RANK"])


def args_for(**given):
    args = _HorovodArgs()
    for name, value in given.items():
        setattr(args, name, value)
    return args


def test_a_function_s_results_come_by_rank():
    factor = 5

    def scaled():
        import horovod.numpy as hvd

        hvd.init()
        return hvd.rank() * factor, hvd.size()

    assert _run(args_for(num_proc=3, run_func=scaled, executable=sys.executable)) == [(0, 3), (5, 3), (10, 3)]


def test_a_function_that_fails_is_a_runtime_error_with_its_traceback():
    def train():
        raise KeyError("my own bug")

    with pytest.raises(RuntimeError, match=rf"{FAILED}(.|\n)*rank 0(.|\n)*KeyError: 'my own bug'"):
        _run(args_for(run_func=train))


def test_a_command_returns_nothing_and_its_output_appears_where_python_prints(capsys):
    assert _run(parse_args(["-np", "2", "sh", "-c", "echo $HOROVOD_RANK of $HOROVOD_SIZE"])) is None
    assert sorted(capsys.readouterr().out.splitlines()) == ["[0]<stdout>:0 of 2", "[1]<stdout>:1 of 2"]


def test_a_command_that_fails_is_a_runtime_error_that_names_the_rank():
    with pytest.raises(RuntimeError, match=rf"{FAILED}.*\nrank 1 .* failed first: exit code 3"):
        _run(args_for(num_proc=2, command=["sh", "-c", "[ $HOROVOD_RANK = 0 ] && sleep 600 || exit 3"]))


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"command": ["no-such-program"]}, RuntimeError, "^command not found: 'no-such-program'$"),
        ({}, ValueError, "no command given"),
        ({"num_proc": 0, "run_func": rank}, ValueError, "-np must be at least 1, not 0"),
        ({"output_filename": "", "run_func": rank}, ValueError, "--output-filename is empty"),
        ({"run_func": rank, "use_jsrun": True}, NotImplementedError, "run_func through jsrun"),
    ],
)
def test_what_cannot_be_run_is_an_exception(given, error, text):
    with pytest.raises(error, match=text):
        _run(args_for(**given))


def test_the_hosts_say_how_many_ranks_there_are_if_nothing_else_does():
    assert _run(args_for(num_proc=None, hosts="localhost:2", nics={"lo"}, run_func=rank)) == [0, 1]


def test_mpirun_is_a_child_and_its_failure_a_runtime_error(tmp_path, monkeypatch, capsys):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && { echo "mpirun (Open MPI) 5.0"; exit; }\n'
        'for word; do last=$word; done; echo "ran $last"; exit "$last"\n',
        encoding="utf-8",
    )
    mpirun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert _run(args_for(use_mpi=True, command=["exit", "0"])) is None
    assert capsys.readouterr().out == "ran 0\n"
    with pytest.raises(RuntimeError, match="^mpirun failed with exit code 4$"):
        _run(args_for(use_mpi=True, command=["exit", "4"]))
