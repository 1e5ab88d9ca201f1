# SPDX-License-Identifier: Apache-2.0
"""Examples in the docstrings of the NumPy API run and give what they say."""

import numpy as np
from harness.docstring_examples import run_examples
from harness.worlds import on_all_ranks

import horovod.numpy as hvd


@on_all_ranks("shm2")
def test_examples_of_the_numpy_api():
    assert run_examples(hvd, [hvd, hvd.elastic], np=np) == []
