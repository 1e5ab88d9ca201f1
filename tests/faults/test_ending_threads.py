# SPDX-License-Identifier: Apache-2.0
"""Fault 42: a program ends while its threads are inside calls of Horovod, and is never aborted by that.

It ends with the exit code that it chose. HOROVOD_TEST_ENDS (3) is the number of repetitions, and HOROVOD_TEST_SEED
chooses the moments.
"""

import importlib.util
import os
import re
import time
from collections.abc import Mapping

import pytest
from faultkit.ending_calls import KINDS
from faultkit.jobs import PlainJob, forked

ENDS = int(os.environ.get("HOROVOD_TEST_ENDS", "3"))
SEED = int(os.environ.get("HOROVOD_TEST_SEED") or time.time_ns() % 1_000_000)
UNWANTED = re.compile(
    r"terminate called|Exception in thread|Exception ignored|Traceback|Fatal Python error|core dumped"
)
MODULES = {
    "numpy": "numpy",
    "torch": "torch",
    "distributed": "torch",
    "tensorflow": "tensorflow",
    "jax": "jax",
    "mxnet": "mxnet",
}


# These run in a separate job, because a rank that has joined takes part in all calls of the other rank.
JOINS = {"numpy": "numpy.join:waits", "torch": "torch.join:waits"}
# Look for deadlocks so soon that the engine asks Python about waiting threads (numpy.alone) while the program ends.
ASKS_AT_ONCE = {"HOROVOD_DEADLOCK_CHECK_TIME_SECONDS": "0.02"}


def kinds_of(framework: str) -> list[str]:
    return [kind for kind in KINDS if kind.startswith(f"{framework}.") and kind not in JOINS.values()]


def need(framework: str) -> None:
    if importlib.util.find_spec(MODULES[framework]) is None:
        pytest.skip(f"{framework} is not installed here")


def check_end(kinds: list[str], code: int, seed: int, env: Mapping[str, str] | None = None) -> None:
    with PlainJob(forked("ending", ",".join(kinds), str(code), str(seed)), "a:2", env) as job:
        codes = job.wait(limit_s=60)
        printed = job.printed_by_all()
    assert codes == [code, code], f"seed {seed}\n{printed}"
    assert not UNWANTED.search(printed), f"seed {seed}\n{printed}"


@pytest.mark.timeout(90 + 15 * ENDS)
@pytest.mark.parametrize("framework", MODULES)
def test_fault_42_the_exit_code_is_the_programs(framework, forking):
    need(framework)
    print(f"HOROVOD_TEST_SEED={SEED}")
    for index in range(ENDS):
        asks = framework == "numpy" and index // 2 % 2 == 1
        env = forking(framework) | (ASKS_AT_ONCE if asks else {})
        check_end(kinds_of(framework), (0, 3)[index % 2], SEED + index, env)


@pytest.mark.parametrize("framework", JOINS)
def test_fault_42_the_exit_code_is_the_programs_while_a_thread_has_joined(framework, forking):
    need(framework)
    check_end([JOINS[framework]], 0, SEED, forking(framework))
