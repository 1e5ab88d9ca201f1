# SPDX-License-Identifier: Apache-2.0
"""Placement of workers: this machine's ProcessTree and the agents of other hosts, combined into one tree."""

from __future__ import annotations

import select
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import IO, Protocol

from horovod.launcher.remote.hosts import RemoteHosts
from horovod.launcher.start.processes import Event, ProcessTree


class Placer(Protocol):
    """Interface for starting, signalling and ending workers by key. Its descriptor is readable when events wait."""

    @property
    def is_over(self) -> bool: ...

    @property
    def left(self) -> Sequence[int | str]: ...

    def fileno(self) -> int: ...

    def start(self, key: int, command: Sequence[str], env: Mapping[str, str]) -> tuple[IO[bytes], IO[bytes]]: ...

    def signal(self, key: int, number: int) -> None: ...

    def end(self, grace_s: float, patience_s: float = 0.0) -> None: ...

    def end_limit_s(self, grace_s: float) -> float: ...

    def events(self) -> list[Event]: ...

    def suspended(self) -> AbstractContextManager[None]: ...

    def kill_directly(self) -> None: ...


class Placement:
    """Placer for several hosts.

    `hosts` maps keys to the hosts of their workers; a host without an agent is this machine.
    """

    def __init__(self, tree: ProcessTree, remote: RemoteHosts, hosts: Mapping[int, str]) -> None:
        self._tree = tree
        self._remote = remote
        self._hosts = hosts
        self._poll = select.epoll()
        self._poll.register(tree.fileno(), select.EPOLLIN)
        self._poll.register(remote.fileno(), select.EPOLLIN)

    def close(self) -> None:
        self._poll.close()

    def fileno(self) -> int:
        return self._poll.fileno()

    @property
    def is_over(self) -> bool:
        return self._tree.is_over and self._remote.is_over

    @property
    def left(self) -> Sequence[int | str]:
        return [*self._tree.left, *self._remote.left]

    def start(self, key: int, command: Sequence[str], env: Mapping[str, str]) -> tuple[IO[bytes], IO[bytes]]:
        host = self._hosts[key]
        if host in self._remote.hosts:
            return self._remote.start(host, key, command, env)
        return self._tree.start(key, command, env)

    def signal(self, key: int, number: int) -> None:
        (self._remote if self._hosts[key] in self._remote.hosts else self._tree).signal(key, number)

    def end(self, grace_s: float, patience_s: float = 0.0) -> None:
        self._tree.end(grace_s, patience_s)
        self._remote.end(grace_s, patience_s)

    def end_limit_s(self, grace_s: float) -> float:
        return self._tree.end_limit_s(grace_s) + self._remote.end_limit_s()

    def events(self) -> list[Event]:
        return [*self._tree.events(), *self._remote.events()]

    def suspended(self) -> AbstractContextManager[None]:
        return self._remote.suspended()

    def kill_directly(self) -> None:
        if not self._tree.is_over:
            self._tree.kill_directly()
        self._remote.give_up()
