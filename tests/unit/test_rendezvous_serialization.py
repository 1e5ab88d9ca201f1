# SPDX-License-Identifier: Apache-2.0
"""Fault 27: code travels only through the one audited file."""

import re
from pathlib import Path

import horovod
from horovod.common import serialization


def test_only_the_audited_file_imports_a_pickler():
    pattern = re.compile(r"^\s*(import|from)\s+(cloudpickle|pickle|_pickle|dill|marshal|shelve)\b", re.MULTILINE)
    package = Path(horovod.__file__).parent
    importers = [
        path.relative_to(package).as_posix() for path in package.rglob("*.py") if pattern.search(path.read_text())
    ]
    assert importers == ["common/serialization.py"]


def test_lambdas_survive_the_journey():
    offset = 3
    assert serialization.loads(serialization.dumps(lambda x: x + offset))(4) == 7
