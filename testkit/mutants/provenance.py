# SPDX-License-Identifier: Apache-2.0
"""Pytest plugin that ends a run whose tests do not import the mutated package, since another one may be installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PACKAGE_VARIABLE = "KHOROVOD_MUTANT_PACKAGE"  # the folder from which horovod must be imported
WRONG_PACKAGE = "tests of mutants must import horovod from"


def pytest_report_header() -> str:
    import horovod

    return f"horovod: {horovod.__file__}"


def pytest_configure(config: pytest.Config) -> None:
    import horovod
    import horovod._engine as engine

    expected = Path(os.environ[PACKAGE_VARIABLE]).resolve()
    for file in (horovod.__file__, engine.__file__):
        if file is None or Path(file).resolve().parent != expected:
            raise pytest.UsageError(f"{WRONG_PACKAGE} {expected}, not from {file}")
