# SPDX-License-Identifier: Apache-2.0
"""Examples in the docstrings of the Keras APIs run and give what they say, on every backend."""

import os
import tempfile

import pytest
from harness.docstring_examples import run_examples
from harness.keras_worlds import ALL
from harness.worlds import on_all_ranks

START_S = 200  # the first test of a world imports its frameworks, on all ranks at once


@on_all_ranks(*ALL, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_examples_of_the_keras_api():
    import numpy as np
    from harness import keras_door as door

    hvd = door.hvd
    model = door.model()
    model.compile(loss="mse", optimizer=door.keras.optimizers.SGD(0.1))
    of_the_backend = {"Compression", "run"}
    with tempfile.TemporaryDirectory() as folder:
        scope = {"np": np, "keras": door.keras, "model": model, "path": os.path.join(folder, "model.keras")}
        assert run_examples(hvd, [hvd, hvd.elastic, hvd.callbacks], of_the_backend, **scope) == []
