# SPDX-License-Identifier: Apache-2.0
"""Fault 27: only the one audited file serialises code."""

import re
from pathlib import Path

import horovod
from horovod.common import serialization


def importers_of(modules: str) -> list[str]:
    pattern = re.compile(rf"^\s*(import|from)\s+({modules})\b", re.MULTILINE)
    package = Path(horovod.__file__).parent
    return [path.relative_to(package).as_posix() for path in package.rglob("*.py") if pattern.search(path.read_text())]


def test_only_the_audited_file_imports_a_pickler():
    assert importers_of("cloudpickle|pickle|_pickle|dill|shelve") == ["common/serialization.py"]


def test_marshal_is_only_for_a_process_of_ours_over_a_socket_that_nobody_else_has():
    assert importers_of("marshal") == ["launcher/start/guardian.py"]


def test_lambdas_survive_the_journey():
    offset = 3
    assert serialization.loads(serialization.dumps(lambda x: x + offset))(4) == 7
