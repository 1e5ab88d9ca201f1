# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests of the launcher: a horovodrun that ends with the test, and pipes to its workers."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from testkit.launcher import HOROVODRUN
from testkit.pipes import Gate, Ready
from testkit.processes import Process


@pytest.fixture
def ready(tmp_path: Path) -> Iterator[Ready]:
    with Ready(tmp_path / "ready") as ready:
        yield ready


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with Gate(tmp_path / "gate") as gate:
        yield gate


@pytest.fixture
def launch() -> Iterator[Callable[..., Process]]:
    """Return a function that starts horovodrun with subprocess.Popen's options; kill what is left after the test."""
    with ExitStack() as stack:

        def start(*words: str, **options: Any) -> Process:
            return stack.enter_context(Process([*HOROVODRUN, *words], **options))

        yield start
