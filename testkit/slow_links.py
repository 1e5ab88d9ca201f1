# SPDX-License-Identifier: Apache-2.0
"""Slow and lossy link between two simulated hosts: a user-space program forwards every frame.

It replaces the switch between these two hosts. It delays each frame, keeps their order, drops some, and sometimes
stalls. The hosts' TCP has to cope with this as between data centres. Needs root and `ip`.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from testkit.hosts import Network
from testkit.lifetimes import die_with_parent
from testkit.places import ROOT, python_path
from testkit.processes import Process

_SOL_PACKET, _PACKET_VNET_HDR = 263, 15
_ETH_P_ALL = 3
_VNET_HEADER = 10  # header with checksums and segmentation that the kernel leaves to the network card
_LONGEST = _VNET_HEADER + (1 << 16) + 64
_QUEUE_BYTES = 64 << 20
_MOST_AT_ONCE = 64
READY, STALLING = "ready", "stalling"


@dataclass
class Cable:
    """Fate of each frame; pure. `stalls` holds (n, s): from the n-th frame on, no frame leaves for s seconds."""

    delay_s: float
    loss: float = 0.0
    stalls: list[tuple[int, float]] = field(default_factory=list)
    on_stall: Callable[[float], None] = lambda seconds: None
    _frames: int = 0
    _closed_until: float = 0.0
    _random: random.Random = field(default_factory=lambda: random.Random(0))

    def due(self, now: float) -> float | None:
        """Return the time at which a frame that arrives now leaves at the other end; None if it is lost."""
        self._frames += 1
        while self.stalls and self._frames >= self.stalls[0][0]:
            _, seconds = self.stalls.pop(0)
            self._closed_until = max(self._closed_until, now) + seconds
            self.on_stall(seconds)
        if self.loss and self._random.random() < self.loss:
            return None
        return max(now, self._closed_until) + self.delay_s


class SlowLink:
    """Slow link that runs until it is closed; then both hosts are connected to the switch again."""

    def __init__(
        self,
        network: Network,
        first: str,
        second: str,
        delay_s: float,
        loss: float = 0.0,
        stalls: Iterable[tuple[int, float]] = (),
    ) -> None:
        self._network, self._names = network, (first, second)
        ports = network.unplug(first), network.unplug(second)
        words = ["--delay", str(delay_s), "--loss", str(loss)]
        words += [f"--stall={frames}:{seconds}" for frames, seconds in stalls]
        command = [*network.inside_switch(), sys.executable, "-m", "testkit.slow_links", *ports, *words]
        pipe = {"stdout": subprocess.PIPE, "text": True, "preexec_fn": die_with_parent}
        self._process = Process(command, {"PYTHONPATH": python_path(ROOT)}, **pipe)
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != READY:
            self._process.wait(10)
            printed = self._process.printed()
            self.close()
            raise RuntimeError(f"the slow link did not start: {printed}")

    def close(self) -> list[str]:
        """End the link and return its reports: one line for each stall."""
        self._process.terminate()
        said = self._process.communicate(timeout=10)[0] or ""
        self._process.end()
        for name in self._names:
            self._network.plug_in(name)
        return [line for line in str(said).splitlines() if line.startswith(STALLING)]


def carry(ends: tuple[socket.socket, socket.socket], cable: Cable) -> None:
    """Forward frames from each end to the other, indefinitely."""
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    waiting: list[tuple[float, int, socket.socket, bytes]] = []  # sorted by due time
    numbers = itertools.count()
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _send(*heapq.heappop(waiting)[2:])
        patience = max(0.0, waiting[0][0] - now) if waiting else None
        for end in select.select(ends, [], [], patience)[0]:
            for frame in _received(end):
                due = cable.due(time.monotonic())
                if due is not None:
                    heapq.heappush(waiting, (due, next(numbers), other[end], frame))


def _received(end: socket.socket) -> Iterable[bytes]:
    for _ in range(_MOST_AT_ONCE):
        try:
            frame, address = end.recvfrom(_LONGEST)
        except BlockingIOError:
            return
        if address[2] != socket.PACKET_OUTGOING:  # skips frames that this process has sent
            yield frame


def _send(end: socket.socket, frame: bytes) -> None:
    try:
        end.send(frame)
    except (BlockingIOError, OSError):
        pass  # the queue is full, so the frame is lost as on a real cable


def _open(port: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    # Let segments of 64 KB with unfinished checksums pass unchanged, so that this program need not split or checksum
    # them.
    end.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    for option in (33, 32):  # SO_RCVBUFFORCE, SO_SNDBUFFORCE
        end.setsockopt(socket.SOL_SOCKET, option, _QUEUE_BYTES)
    end.bind((port, _ETH_P_ALL))
    end.setblocking(False)
    return end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ports", nargs=2)
    parser.add_argument("--delay", type=float, required=True, help="seconds, one way")
    parser.add_argument("--loss", type=float, default=0.0, help="share of the frames")
    parser.add_argument("--stall", action="append", default=[], metavar="FRAMES:SECONDS")
    options = parser.parse_args()
    stalls = [(int(frames), float(seconds)) for frames, _, seconds in (one.partition(":") for one in options.stall)]
    first, second = map(_open, options.ports)
    print(READY, flush=True)
    told = lambda seconds: print(STALLING, seconds, flush=True)  # noqa: E731
    carry((first, second), Cable(options.delay, options.loss, stalls, told))


if __name__ == "__main__":
    main()
