# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/hosts.md that hosts with ssh can run, exactly as the page shows them."""

import os
import re
import shlex
import sys

import pytest
from testkit.launcher import lines_by_rank
from testkit.places import ROOT

PROGRAM = "import socket, horovod.numpy as hvd\nhvd.init()\nprint(socket.gethostname(), hvd.rank(), hvd.size())\n"


def commands():
    """Return the commands of the section on ssh, with the hosts renamed to h1 and h2."""
    page = (ROOT / "docs" / "hosts.md").read_text(encoding="utf-8")
    section = page[page.index("\n## ssh\n") : page.index("\n## More pages\n")]
    blocks = re.findall(r"^```console[^\n]*\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    typed = [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [re.sub(r"\bhost(\d)\b", r"h\1", line) for line in typed]


def test_commands_are_found():
    assert len(commands()) == 3


@pytest.mark.parametrize("command", commands())
def test_command(hosts, on_h1, tmp_path, command):
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "hosts.txt").write_text("h1 slots=2\nh2 slots=2\n")
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    line = re.sub(r"^ssh ", f"{hosts.ssh} ", command)
    done = on_h1("bash", "-c", line, env={"PATH": path}, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    if not command.startswith("horovodrun"):
        assert re.match(r"h1: khorovod \S+, Python 3\.\d+\.\d+, \d+ cores\n", done.stdout)
        return
    words = shlex.split(command)
    size = int(words[words.index("-np") + 1]) if "-np" in words else 4
    assert lines_by_rank(done.stdout) == {rank: [f"h{1 + rank // 2} {rank} {size}"] for rank in range(size)}
    if "--output-filename" in words:
        assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == [f"rank.{rank}" for rank in range(size)]
