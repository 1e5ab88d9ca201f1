# SPDX-License-Identifier: Apache-2.0
"""Three hosts with real sshd, as network namespaces. They are made once; a test that breaks one repairs it."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from testkit.launcher import HOROVODRUN
from testkit.needs import need
from testkit.processes import Process, run
from testkit.ssh import SshHosts, missing

# A job here has a dozen processes, which take their time on a busy machine.
LIMIT_S = 90


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(3 * LIMIT_S))


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    need(missing(), "root, and scripts/system-packages")
    hosts = SshHosts(["h1", "h2", "h3"], tmp_path_factory.mktemp("ssh"))
    yield hosts
    hosts.close()


@pytest.fixture
def on_h1(hosts: SshHosts) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs a command on h1 to its end."""

    def start(*words: str, env: dict[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
        environment = {"HOROVOD_SSH_COMMAND": hosts.ssh, **(env or {})}
        return run([*hosts.inside("h1"), *words], environment, **({"limit_s": LIMIT_S} | options))

    return start


@pytest.fixture
def horovodrun(on_h1: Callable[..., Any]) -> Callable[..., subprocess.CompletedProcess[str]]:
    def start(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return on_h1(*HOROVODRUN, *words, **options)  # type: ignore[no-any-return]

    return start


@pytest.fixture
def launch(hosts: SshHosts) -> Iterator[Callable[..., Process]]:
    """Yield a function that starts horovodrun on h1. Jobs that still run at the end are killed."""
    with ExitStack() as stack:

        def start(*words: str) -> Process:
            command = [*hosts.inside("h1"), *HOROVODRUN, *words]
            pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            return stack.enter_context(Process(command, {"HOROVOD_SSH_COMMAND": hosts.ssh}, **pipe))

        yield start
