# SPDX-License-Identifier: Apache-2.0
"""Examples in the docstrings of the PyTorch API run and give what they say."""

import torch
from harness.docstring_examples import run_examples
from harness.worlds import on_all_ranks

import horovod.torch as hvd


@on_all_ranks("shm2")
def test_examples_of_the_torch_api():
    assert run_examples(hvd, [hvd, hvd.elastic], torch=torch) == []
