# SPDX-License-Identifier: Apache-2.0
"""All Python code of docs/tensorflow.md, unchanged, in live ranks because TensorFlow takes long to import."""

import re
from pathlib import Path

import pytest
import warning_rules
from harness.tensorflow_training import LIMIT, on_tensorflow_ranks

PAGE = Path(__file__).parents[3] / "docs" / "tensorflow.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.skipif(not warning_rules.frameworks_are_pinned(), reason="the page is written for the newest versions")
@pytest.mark.timeout(LIMIT)
@on_tensorflow_ranks("shm2")
def test_code_of_the_page():
    from harness.tensorflow_training import door

    door()
    assert len(BLOCKS) >= 6
    for block in BLOCKS:
        exec(compile(block, "docs/tensorflow.md", "exec"), {"__name__": "__main__"})
