# SPDX-License-Identifier: Apache-2.0
"""`hvd test` without starting ranks: it detects wrong results, and failures set the exit code."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import horovod.numpy as hvd
from horovod.tools import collective_checks, results, selftest, trial
from horovod.tools.cli import Transport, app
from horovod.tools.results import FAIL, NOT_APPLICABLE, PASS, Check
from horovod.tools.speed import Speed


@pytest.fixture
def alone():
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.usefixtures("alone")
def test_every_operation_passes_in_a_world_of_one():
    checks = collective_checks.check_all()
    assert [check for check in checks if check.outcome == FAIL] == []
    assert len({check.dtype for check in checks if check.outcome == PASS}) >= 13


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("function", "operation"),
    [("allreduce", "sum"), ("allgather", "allgather"), ("broadcast", "broadcast"), ("reducescatter", "reducescatter")],
)
def test_a_wrong_result_is_found(monkeypatch, function, operation):
    right = getattr(hvd, function)

    def wrong(*args, **kwargs):
        result = right(*args, **kwargs).copy()
        result[-1] += 1
        return result

    monkeypatch.setattr(hvd, function, wrong)
    found = collective_checks.check_one(operation, "int32")
    assert found.outcome == FAIL
    assert "1 elements: " in found.text
    assert collective_checks.check_one("alltoall", "int32").outcome == PASS


def test_a_dtype_that_is_not_there_is_not_tested(monkeypatch):
    monkeypatch.setattr(collective_checks, "find_dtype", lambda name: None)
    check = collective_checks.check_one("sum", "bfloat16")
    assert (check.outcome, check.text) == (NOT_APPLICABLE, "ml_dtypes is not installed")


def test_dtypes_are_found():
    assert collective_checks.find_dtype("float16") == np.float16
    assert collective_checks.find_dtype("no such type") is None


def test_a_check_passes_only_if_it_passes_on_every_rank():
    right, wrong = Check("sum", "int8", PASS), Check("sum", "int8", FAIL, "1 is not 2")
    assert results.merge([[right], [right]]) == [right]
    assert results.merge([[right], [wrong]]) == [Check("sum", "int8", FAIL, "rank 1: 1 is not 2")]


def report(*checks):
    return results.Report("1.0", 2, "TCP", "portable", 1.5, list(checks), [Speed(8, 1e-5), Speed(1 << 20, 1e-3)])


def hvd_test(monkeypatch, outcome, *words):
    def run(ranks, transport, limit_s, options):
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(selftest, "run", run)
    return CliRunner().invoke(app, ["test", *words])


def test_success_is_exit_code_0(monkeypatch):
    done = hvd_test(monkeypatch, report(Check("sum", "int8", PASS)))
    assert done.exit_code == 0
    assert "passed: 1 checks" in done.output
    assert "1 MiB  1.00 ms  1.05 GB/s" in done.output


def test_a_failure_is_exit_code_1_and_named(monkeypatch):
    done = hvd_test(monkeypatch, report(Check("sum", "int8", PASS), Check("max", "bool", FAIL, "rank 1: [/bad] value")))
    assert done.exit_code == 1
    assert "failed: 1 of 2 checks" in done.output
    assert "max bool: rank 1: [/bad] value" in done.output


def test_a_failure_in_the_document(monkeypatch):
    done = hvd_test(monkeypatch, report(Check("max", "bool", FAIL, "rank 1")), "--json")
    assert done.exit_code == 1
    document = json.loads(done.output)
    assert document["passed"] is False
    assert document["checks"] == [{"operation": "max", "dtype": "bool", "outcome": "fail", "text": "rank 1"}]
    assert document["allreduce"][0] == {"bytes": 8, "seconds": 1e-5, "bytes_per_second": 8 / 1e-5}


def test_no_check_at_all_is_no_success():
    assert not report().passed


def test_ranks_that_cannot_run_are_exit_code_1(monkeypatch):
    done = hvd_test(monkeypatch, trial.TrialFailed("rank 1 failed first"))
    assert done.exit_code == 1
    assert "hvd test: rank 1 failed first" in done.output


def test_the_command_and_the_trial_know_the_same_transports():
    assert [choice.value for choice in Transport] == list(trial.TRANSPORTS)
