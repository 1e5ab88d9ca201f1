# SPDX-License-Identifier: Apache-2.0
"""scripts/check-python-layers: what it finds in packages with planted imports."""

import subprocess
import sys
from pathlib import Path

import pytest
from testkit.places import ROOT

SCRIPT = ROOT / "scripts" / "check-python-layers"
IN_A_FUNCTION = "def late():\n    from {} import {}\n"
FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from {} import {}\n"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"common/b": "from horovod.common import a", "torch/a": "from horovod.common.b import x"}, None),
        ({"common/b": FOR_TYPES.format("horovod.common", "a"), "common/a": "import horovod.common.b"}, None),
        (
            {"common/b": IN_A_FUNCTION.format("horovod.common.a", "x"), "common/a": "import horovod.common.b"},
            "horovod.common.a <- horovod.common.b <- horovod.common.a",
        ),
        ({"common/b": IN_A_FUNCTION.format("horovod.torch", "a")}, "src/horovod/common/b.py:2 imports horovod.torch"),
        ({"launcher/b": "import horovod.numpy"}, "src/horovod/launcher/b.py:1 imports horovod.numpy"),
        ({"ray/b": "import horovod.runner.c"}, "src/horovod/ray/b.py:1 imports horovod.runner.c"),
        ({"unheard/b": ""}, "src/horovod/unheard/b.py is in no layer"),
    ],
)
def test_only_cycles_and_imports_of_higher_layers_are_found(
    tmp_path: Path, files: dict[str, str], found: str | None
) -> None:
    empty = dict.fromkeys(("__init__", "torch/__init__", "numpy/__init__", "common/a", "torch/a", "runner/c"), "")
    for name, text in (empty | files).items():
        path = tmp_path / "horovod" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = subprocess.run([sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert (done.returncode, len(lines)) == ((0, 0) if found is None else (1, 1)), done.stdout
    assert found is None or found in lines[0]
