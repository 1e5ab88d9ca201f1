# SPDX-License-Identifier: Apache-2.0
"""The ranks of one way to run a training step: processes that run steps when told to and say how long each took."""

from __future__ import annotations

import base64
import json
import os
import secrets
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchkit.libraries import free_port
from benchkit.lifetime import die_with_parent, end_group

LIMIT_S = 300.0


class Team:
    """Starts `command`, a list for this interpreter, once for each rank, with --ranks, --rank and --port added."""

    def __init__(
        self, way: str, ranks: int, command: Sequence[str], cores: list[int], environment: Mapping[str, str]
    ) -> None:
        self.way = way
        self.times: list[float] = []
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the ranks
        port = str(free_port())
        shared = {
            "HOROVOD_SIZE": str(ranks),
            "HOROVOD_LOCAL_SIZE": str(ranks),
            "HOROVOD_RENDEZVOUS": "self",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
            "_HOROVOD_SECRET_KEY": base64.b64encode(secrets.token_bytes(32)).decode(),
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
            **environment,
        }
        self.processes = []
        for rank in range(ranks):
            pin = ["taskset", "-c", str(cores[rank])] if cores else []
            own = {"HOROVOD_RANK": str(rank), "HOROVOD_LOCAL_RANK": str(rank)}
            numbers = ["--ranks", str(ranks), "--rank", str(rank), "--port", port]
            self.processes.append(
                subprocess.Popen(
                    [*pin, sys.executable, *command, *numbers],
                    env={**os.environ, **shared, **own},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._log,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
            )
        self.losses = [reply["loss"] for reply in self._replies()]

    def run(self, steps: int) -> None:
        """So many steps on all ranks; a step takes as long as on the slowest."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"run {steps}\n".encode())
            process.stdin.flush()
        everyone = [reply["times"] for reply in self._replies()]
        self.times += [max(times) for times in zip(*everyone, strict=True)]

    def _replies(self) -> list[Any]:
        return [json.loads(self._line(process)) for process in self.processes]

    def _line(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            line = process.stdout.readline() if selector.select(LIMIT_S) else b""
        if not line:
            self._log.seek(0)
            raise RuntimeError(f"{self.way}: a rank fell silent\n{self._log.read().decode(errors='replace')[-3000:]}")
        return line

    def stop(self) -> None:
        for process in self.processes:
            end_group(process)
