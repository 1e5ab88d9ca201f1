# SPDX-License-Identifier: Apache-2.0
"""Examples in the docstrings of the TensorFlow API run and give what they say."""

import pytest
from harness.docstring_examples import run_examples
from harness.tensorflow_training import LIMIT, on_tensorflow_ranks

pytestmark = pytest.mark.timeout(LIMIT)


@on_tensorflow_ranks("shm2")
def test_examples_of_the_tensorflow_api():
    from harness.tensorflow_training import door

    tf, hvd = door()
    assert run_examples(hvd, [hvd, hvd.elastic], tf=tf) == []
