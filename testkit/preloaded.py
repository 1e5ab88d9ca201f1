#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Server that forks Python programs from a process that has already imported a slow framework.

`Preloaded` starts the server. `command(program)` returns a command that runs a program, for a launcher. The command is
a small client: it passes its environment, working folder and standard streams to the server, forwards signals, and ends
as the program ends. Variables of the dynamic linker (LD_LIBRARY_PATH) must be in the server's environment.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# PyTorch imports `_dynamo` for the first optimizer; this import takes longer than all others.
TORCH = ("torch", "torch.distributed", "torch._dynamo", "horovod.torch", "horovod.torch.distributed")
# These two start no threads before their first computation (with OMP_NUM_THREADS=1), so that forks of them are whole.
TENSORFLOW = ("tensorflow",)
JAX = ("jax", "jax.numpy")
BY_FRAMEWORK = {"torch": TORCH, "distributed": TORCH, "tensorflow": TENSORFLOW, "keras": TENSORFLOW, "jax": JAX}
SOCKET_VARIABLE = "TEST_PRELOADED"  # the server's socket
ANEW = {SOCKET_VARIABLE: ""}  # makes a client start a new Python process, for variables that are read during an import
_LENGTH = struct.Struct("!I")
_MOST_DESCRIPTORS = 200  # limit of a program's descriptors at its start; the kernel passes at most 253
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def command(program: str) -> list[str]:
    """Return the command that runs a program, forked by a server if the environment names one."""
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), program]


class Preloaded:
    """Server process that ends with this process."""

    def __init__(self, path: str, modules: Sequence[str], env: Mapping[str, str]) -> None:
        from testkit.lifetimes import die_with_parent
        from testkit.places import ROOT, TESTS, python_path
        from testkit.processes import Process

        self.variables = {SOCKET_VARIABLE: path}
        env = {**env, "PYTHONPATH": python_path(ROOT, TESTS)}
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(64)  # from now on clients can wait for the server
            words = [sys.executable, "-m", "testkit.preloaded", "--serve", str(listener.fileno()), *modules]
            self._process = Process(words, env, pass_fds=[listener.fileno()], preexec_fn=die_with_parent)
        _servers.append(self._process.pid)

    def __enter__(self) -> Preloaded:
        return self

    def __exit__(self, *_: object) -> None:
        _servers.remove(self._process.pid)
        self._process.end()  # also ends all forked programs


_servers: list[int] = []


def servers() -> list[int]:
    """Return the process ids of the running servers, whose descendants are the forked programs."""
    return list(_servers)


# The client


def run_program(words: Sequence[str]) -> NoReturn:
    """Run a program and end with its exit code or signal."""
    path = os.environ.get(SOCKET_VARIABLE)
    if not path:
        os.execv(sys.executable, [sys.executable, *words])
    descriptors = open_descriptors()
    env = dict(os.environ)
    order = json.dumps({"words": [*words], "env": env, "folder": os.getcwd(), "descriptors": descriptors}).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)

        def pass_on(number: int, _: object) -> None:
            try:
                server.send(bytes([number]))
            except OSError:
                pass  # the program has ended

        # Block signals until the order is sent, because a signal's byte must not be sent amid the bytes of the order.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
        for number in _PASSED_ON:
            signal.signal(number, pass_on)
        socket.send_fds(server, [_LENGTH.pack(len(order))], descriptors)
        server.sendall(order)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        answer = server.recv(_LENGTH.size, socket.MSG_WAITALL)
    if len(answer) < _LENGTH.size:
        sys.exit(f"the process that had imported the modules is gone: {path}")
    (code,) = _LENGTH.unpack(answer)
    if code <= 255:
        os._exit(code)
    end_by(code - 256)


def open_descriptors() -> list[int]:
    """Return the descriptors that this process was started with."""
    found = [int(name) for name in os.listdir("/proc/self/fd")]
    # Excludes the descriptor of the listed folder.
    return [number for number in sorted(found) if os.path.exists(f"/proc/self/fd/{number}")]


def end_by(number: int) -> NoReturn:
    """End this process by a signal, without a core file."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


# The server


class Server:
    """Server that forks the programs that clients request. `next_program` returns in each fork."""

    Order = tuple[dict[str, Any], list[int]]  # a client's request, and its descriptors as numbered in this process

    def __init__(self, listener: int) -> None:
        import selectors

        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(fileno=listener)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._pids: dict[socket.socket, int] = {}

    def next_program(self) -> Order:
        """Serve clients; in a forked child, return its order."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    order = self._take(self._listener.accept()[0])
                    if order is not None:
                        self._close()
                        return order
                elif isinstance(key.fileobj, socket.socket):
                    self._signal(key.fileobj)
                else:
                    self._tell_end(key.data, key.fd)

    def _take(self, client: socket.socket) -> Order | None:
        import selectors

        header, received, _, _ = socket.recv_fds(client, _LENGTH.size, _MOST_DESCRIPTORS)
        length = _LENGTH.unpack(header)[0] if len(header) == _LENGTH.size else 0
        order = client.recv(length, socket.MSG_WAITALL)
        if not length or len(order) < length:  # the client was killed before it had sent the whole order
            for descriptor in received:
                os.close(descriptor)
            client.close()
            return None
        if (pid := os.fork()) == 0:
            client.close()
            return json.loads(order), received
        for descriptor in received:
            os.close(descriptor)
        self._pids[client] = pid
        self._selector.register(client, selectors.EVENT_READ)
        self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, client)
        return None

    def _signal(self, client: socket.socket) -> None:
        """Forward signals to the program; if its client was killed, kill the program."""
        if client not in self._pids:  # one poll reported the program's end and the client's message
            return
        numbers = client.recv(64)
        if not numbers:
            self._selector.unregister(client)
        for number in numbers or [signal.SIGKILL]:
            os.kill(self._pids[client], number)  # the program was not waited for yet, so its process id is still valid

    def _tell_end(self, client: socket.socket, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(self._pids.pop(client), 0)[1])
        if client in self._selector.get_map():
            self._selector.unregister(client)
        with client:
            client.setblocking(False)
            try:
                client.send(_LENGTH.pack(code if code >= 0 else 256 - code))
            except OSError:
                pass  # the client was killed

    def _close(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            else:
                os.close(key.fd)
        self._selector.close()


def place(received: Sequence[int], numbers: Sequence[int]) -> None:
    """Give descriptors the numbers that they have in the client."""
    import fcntl

    above = max(*received, *numbers) + 1
    apart = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above) for descriptor in received]
    for descriptor in received:
        os.close(descriptor)
    for descriptor, number in zip(apart, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


def serve(listener: int, modules: Sequence[str]) -> None:
    """Import modules and serve; in each forked child, run the program."""
    import gc
    import importlib
    import runpy
    from contextlib import suppress

    from testkit.lifetimes import die_with_parent

    server = Server(listener)
    for name in modules:
        # An old version may lack the module; a program that needs it fails with an import error.
        with suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # garbage collection in forks would copy the memory of all imported modules
    order, received = server.next_program()
    die_with_parent()
    place(received, order["descriptors"])
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["env"])
    program = order["words"][0]
    sys.argv = order["words"]
    sys.path[0] = os.path.dirname(os.path.abspath(program))
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(int(sys.argv[2]), sys.argv[3:])
    else:
        run_program(sys.argv[1:])
