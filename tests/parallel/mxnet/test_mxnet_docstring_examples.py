# SPDX-License-Identifier: Apache-2.0
"""Examples in the docstrings of the MXNet API run and give what they say."""

from harness.docstring_examples import run_examples
from harness.mxnet_arrays import mx, on_mxnet_ranks

import horovod.mxnet as hvd


@on_mxnet_ranks("shm2")
def test_examples_of_the_mxnet_api():
    assert run_examples(hvd, [hvd], mx=mx) == []
