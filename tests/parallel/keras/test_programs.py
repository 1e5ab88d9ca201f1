# SPDX-License-Identifier: Apache-2.0
"""The examples and all Python code of docs/keras.md, unchanged, in live ranks because imports take long."""

import contextlib
import io
import os
import re
import runpy
import sys
import tempfile
from pathlib import Path

import pytest
from harness.keras_worlds import ALL, KERAS_3, ON_TENSORFLOW
from harness.worlds import on_all_ranks

START_S = 200  # seconds; the first test of a world imports its frameworks on all ranks at once
ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "keras"
BLOCKS = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "docs" / "keras.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
)
# In the world "tf_keras" the package `keras` is a different one.
WITH_KERAS = [world for world in ALL if world.name != "tf_keras"]


@on_all_ranks(*WITH_KERAS, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_code_of_the_page():
    from harness import keras_door  # noqa: F401 - quiet about warnings of the frameworks

    assert len(BLOCKS) >= 5
    with tempfile.TemporaryDirectory() as folder, _inside(folder):
        for block in BLOCKS:
            exec(compile(block, "docs/keras.md", "exec"), {"__name__": "__main__"})


@contextlib.contextmanager
def _inside(folder):
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _run(program, *arguments):
    """Run an example. Return what it prints."""
    printed = io.StringIO()
    before = sys.argv, sys.path
    sys.argv, sys.path = [program, *arguments], [str(EXAMPLES), *sys.path]
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(EXAMPLES / program), run_name="__main__")
    finally:
        sys.argv, sys.path = before
    return printed.getvalue()


@pytest.mark.skipif(not KERAS_3, reason="these examples need Keras 3")
@on_all_ranks(*[world for world in KERAS_3 if world in ON_TENSORFLOW], limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_digits_and_mixed_precision():
    from harness import keras_door as door

    printed = _run("digits.py", "--epochs", "6")
    if door.hvd.rank() == 0:
        assert float(re.search(r"accuracy ([\d.]+)%", printed)[1]) > 80
        assert "finished gradual learning rate warmup to 0.002" in printed
    printed = _run("mixed_precision.py")
    if door.hvd.rank() == 0:
        assert float(re.search(r"accuracy ([\d.]+)%", printed)[1]) > 80


@pytest.mark.skipif(not KERAS_3, reason="these examples need Keras 3")
@on_all_ranks(*[world for world in KERAS_3 if world.name == "torch"], limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_resume():
    from harness import keras_door as door

    folder = door.hvd.broadcast_object(tempfile.mkdtemp(), name="folder")
    checkpoint = os.path.join(folder, "digits.keras")
    for epochs, first in (("2", 1), ("3", 3)):
        printed = _run("resume.py", "--checkpoint", checkpoint, "--epochs", epochs)
        if door.hvd.rank() == 0:
            assert f"begins with epoch {first}\n" in printed
        door.hvd.allgather_object(None, "wait for the file")


@on_all_ranks(*ON_TENSORFLOW, limit_s=START_S)
@pytest.mark.timeout(START_S + 60)
def test_tutorial():
    from harness import keras_door as door

    folder = door.hvd.broadcast_object(tempfile.mkdtemp(), name="folder")
    with _inside(folder):
        printed = _run("tensorflow_tutorial.py")
    if door.hvd.rank() == 0:
        last = re.findall(r"val_accuracy: ([\d.]+)", printed)[-1]
        assert float(last) > 0.5
        files = sorted(os.listdir(Path(folder) / "example-output" / "keras-tutorial"))
        assert files == [*(f"checkpoint-{epoch}.keras" for epoch in range(1, 5)), "digits.keras"]
