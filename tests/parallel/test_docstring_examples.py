# SPDX-License-Identifier: Apache-2.0
"""Examples in the docstrings of the NumPy API, and of horovod.run, run and give what they say."""

import numpy as np
from harness.docstring_examples import example_in, problem_of, run_examples
from harness.worlds import on_all_ranks
from testkit.launcher import horovodrun, python
from testkit.places import ROOT, TESTS, python_path

import horovod
import horovod.numpy as hvd

# What ends a world, or needs a setting.
APART = """
import horovod.numpy as hvd
from harness.docstring_examples import NOT_RUN, example_in, problem_of

hvd.init()
for name in NOT_RUN:
    lines = example_in(getattr(hvd, name).__doc__)
    assert lines and problem_of(lines, {"hvd": hvd}, hvd.rank()) == "", name
assert hvd.is_initialized()
"""


@on_all_ranks("shm2")
def test_examples_of_the_numpy_api():
    assert run_examples(hvd, [hvd, hvd.elastic], np=np) == []


def test_examples_that_need_a_job_of_their_own(tmp_path):
    env = {"HOROVOD_TIMELINE": "DYNAMIC", "PYTHONPATH": python_path(ROOT, TESTS)}
    done = horovodrun("-np", "2", *python(APART), env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "timeline.json").is_file()


def test_the_example_of_run():
    scope = {"train": lambda rate: 2 * rate}
    assert problem_of(example_in(horovod.run.__doc__), scope, 0) == ""
    assert scope["results"] == [0.2, 0.2]
