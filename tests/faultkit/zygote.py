# SPDX-License-Identifier: Apache-2.0
"""Process that has imported horovod.numpy and forks workers, so that a worker starts within milliseconds.

Orders are lines of JSON on its standard input: {"worker", "arguments", "env"} starts the program as a worker, and
{"worker", "signal"} signals it. Answers are lines on its standard output: {"worker", "code"} when a worker has ended.
"""

from __future__ import annotations

import json
import os
import runpy
import selectors
import sys
from contextlib import suppress
from typing import Any

from testkit.lifetimes import die_with_parent

import horovod.numpy  # noqa: F401 - what the workers need not import again

Order = dict[str, Any]


def next_worker() -> Order | None:
    """Execute orders until there are no more. In a forked child, return its own order."""
    pids: dict[str, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        rest = b""
        while True:
            for key, _ in selector.select():
                if key.data is not None:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    status = os.waitstatus_to_exitcode(os.waitpid(pids[key.data], 0)[1])
                    answer = {"worker": key.data, "code": status if status >= 0 else 128 - status}
                    os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")
                    continue
                data = os.read(sys.stdin.fileno(), 1 << 16)
                if not data:
                    return None
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    order = json.loads(line)
                    if "signal" in order:
                        with suppress(ProcessLookupError):
                            os.kill(pids[order["worker"]], order["signal"])
                    elif (pid := os.fork()) == 0:
                        return order
                    else:
                        pids[order["worker"]] = pid
                        selector.register(os.pidfd_open(pid), selectors.EVENT_READ, order["worker"])


def main() -> None:
    program = sys.argv[1]
    order = next_worker()
    if order is None:
        return
    die_with_parent()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # the zygote's answers use this descriptor
    os.environ.update(order["env"])
    sys.argv = [program, *order["arguments"]]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
