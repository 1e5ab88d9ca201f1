# SPDX-License-Identifier: Apache-2.0
"""horovod.run(use_mpi=True): mpirun starts the ranks, which fetch the function, meet and leave results here."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from horovod.common.joining.interfaces import LOOPBACK, interface_address, reachable_address
from horovod.common.readiness import is_readable
from horovod.common.rendezvous.protocol import make_secret
from horovod.common.rendezvous.server import Server
from horovod.runner.hosts import is_local, plan_hosts
from horovod.runner.mpi_command import mpirun_words
from horovod.runner.processes import Ended, ProcessTree, Refused
from horovod.runner.run_task import error_key
from horovod.runner.stop_signals import forwarding
from horovod.runner.supervision import GRACE_S
from horovod.runner.worker_environment import rendezvous_environment

_READ_LIMIT_S = 1.0


def run_function(
    options: Mapping[str, Any],
    command: Sequence[str],
    offer: Callable[[Server], None],
    collect: Callable[[Server], list[Any]],
) -> list[Any]:
    """RuntimeError that begins with "mpirun failed" if it does. ValueError if there is no mpirun that we know."""
    secret = make_secret()
    address = _own_address(options)
    with ProcessTree() as tree, Server(address, secret=secret) as server:
        offer(server)
        words, env = mpirun_words(options, command, rendezvous_environment(address, server.port, secret))
        code = _run(tree, words, env)
        if code != 0:
            traces = (server.get(error_key(rank)) for rank in range(options["num_proc"]))
            trace = next((text.decode(errors="replace") for text in traces if text is not None), "")
            raise RuntimeError(f"mpirun failed with exit code {code}\n{trace}".rstrip())
        return collect(server)


def run_to_its_end(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run mpirun or jsrun as a child whose output appears wherever Python prints; return its exit code."""
    with ProcessTree() as tree:
        return _run(tree, words, environment)


def _own_address(options: Mapping[str, Any]) -> str:
    if options.get("nics"):
        return interface_address(",".join(options["nics"]))
    return LOOPBACK if all(is_local(host.hostname) for host in plan_hosts(options)) else reachable_address()


def _run(tree: ProcessTree, words: Sequence[str], env: Mapping[str, str]) -> int:
    pipes = tree.start(0, words, env)
    readers = [
        threading.Thread(target=_copy, args=(pipe, stream), name="horovod-mpirun", daemon=True)
        for pipe, stream in zip(pipes, (sys.stdout, sys.stderr), strict=True)
    ]
    for reader in readers:
        reader.start()
    try:
        with forwarding(lambda number: tree.signal(0, number)):
            code = _await_end(tree, words[0])
        for reader in readers:
            reader.join(_READ_LIMIT_S)
        return code
    finally:  # also after Ctrl-C: nothing is left of it
        tree.end(GRACE_S)
        while not tree.is_over and is_readable(tree, tree.end_limit_s(GRACE_S)):
            tree.events()


def _await_end(tree: ProcessTree, program: str) -> int:
    while True:
        is_readable(tree)
        for event in tree.events():
            match event:
                case Ended(_, code):
                    return code
                case Refused(_, number):
                    raise OSError(number, os.strerror(number), program)


def _copy(pipe: IO[bytes], stream: IO[str]) -> None:
    """To wherever Python prints: in a notebook that is the cell."""
    with pipe:
        while data := pipe.read(1 << 16):
            stream.write(data.decode(errors="replace"))
            stream.flush()
