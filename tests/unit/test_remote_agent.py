# SPDX-License-Identifier: Apache-2.0
"""The remote agent executes only the messages in its table of handlers."""

import subprocess
import sys

import pytest

from horovod.launcher.remote import agent, frames


@pytest.mark.parametrize("verb", ["tree", "_on_job"])
def test_a_message_with_another_verb_ends_the_agent_and_is_named(verb):
    done = subprocess.run(
        [sys.executable, "-m", "horovod.runner.agent"],
        input=frames.pack("alive") + frames.pack(verb) + frames.pack("alive"),
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.startswith(frames.GREETING)
    (line,) = done.stderr.decode().splitlines()
    assert line == f"horovod agent: malformed message: this version has no command {verb!r}"


def test_the_path_of_horovod_runs_the_same_agent():
    import horovod.runner.agent as public

    assert public.main is agent.main
