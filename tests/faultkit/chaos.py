# SPDX-License-Identifier: Apache-2.0
"""Random faults, from a seed, for an elastic training job. After each fault, training must continue."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from faultkit.partition import can_cut, cut_links
from faultkit.training import Training

_OF_MEMBERS = 0.9  # share of kills that hit members; losing a worker that is only starting tests less
_SHORT_STOP_S = 1.0  # during a longer stop, which a loaded machine may cause, the others may have given the worker up
# How long the old offer may take effect: the launcher reads it once a second, and members leave at a commit.
_OFFER_ACTS_S = 10.0
_FOR_GOOD = 0.2  # share of frozen members that never thaw


class Chaos:
    """Source of faults in `job`, which always spare the last worker that has the state.

    Attributes:
        recovered_s: Seconds from each fault to the first completed step of the generation that follows it.
    """

    def __init__(self, job: Training, seed: int, limit_s: float) -> None:
        self._job = job
        self._dice = random.Random(seed)
        self._limit_s = limit_s
        self._frozen: dict[int, float] = {}  # time to thaw, by worker id
        self._thawed: dict[int, int] = {}  # generation in which a worker thawed, by worker id
        self._killed: set[int] = set()  # worker ids; a worker that got SIGKILL may still seem to live for a moment
        self.seed = seed
        self.count = 0
        self.recovered_s: list[float] = []
        self.log: list[str] = []

    def summary(self) -> str:
        times = sorted(self.recovered_s)
        shown = f"{times[len(times) // 2]:.2f} s (median), {times[-1]:.2f} s (most)" if times else "not measured"
        return f"seed {self.seed}: {self.count} faults, {self._job.state()}; from a kill to the next step: {shown}"

    def settle(self) -> None:
        """Wait for the first generation."""
        self._job.await_that("the first step of all", self._job.is_whole, 120)

    def between(self, longest_s: float) -> None:
        """Process reports for a random time."""
        self._job.listen_until(time.monotonic() + self._dice.uniform(0, longest_s))

    def _victims(self, births: Sequence[int]) -> list[int]:
        """Return the workers after whose loss another worker would still have the state.

        A worker that cannot reach the others waits with an old state, which it must not pass on. A worker that was
        frozen may be about to wait in this way, until it trains in a newer generation.
        """
        sure = [birth for birth in self._job.alive() if birth not in self._frozen and birth not in self._killed]
        newest, number = self._job.newest(), self._job.generation
        safe = {birth for birth in sure if birth in newest and self._thawed.get(birth, -1) < number}
        enough = len(safe) - self._leaving()
        return [birth for birth in births if enough > (birth in safe)]

    def _leaving(self) -> int:
        """Return how many workers may be about to leave; it is unknown which ones."""
        return 0

    def kill(self) -> bool:
        """Kill a worker: usually a member, sometimes one that is only starting.

        Return True if there was one to kill.
        """
        victims = self._victims(sorted(self._job.alive().keys() - self._killed))
        newest = self._job.newest()
        if self._dice.random() < _OF_MEMBERS:
            victims = [birth for birth in victims if birth in newest]
        if not victims:
            return False
        birth = self._dice.choice(victims)
        rank = newest[birth]["rank"] if birth in newest else "none yet"
        self._note(f"kill worker {birth} (rank {rank})")
        generation, was_member = self._job.generation, birth in newest
        with suppress(ProcessLookupError):
            os.kill(self._job.pids[birth], signal.SIGKILL)
        self._killed.add(birth)
        self._frozen.pop(birth, None)
        self._recover(generation, was_member)
        return True

    def _recover(self, generation: int, was_member: bool) -> None:
        """Usually wait for the recovery from a member's loss; otherwise the next fault may come during it."""
        began = time.monotonic()
        if was_member and self._dice.random() < 0.7:
            newer = lambda: self._job.generation > generation  # noqa: E731
            self._job.await_that(f"a step after {self.log[-1]}", newer, self._limit_s)
            first = min(one["at"] for one in self._job.stepped[self._job.generation].values())
            self.recovered_s.append(first - began)

    def _note(self, what: str) -> None:
        self.count += 1
        self.log.append(f"fault {self.count} of seed {self.seed}: {what} in generation {self._job.generation}")

    def goes_on(self) -> None:
        """Wait until another epoch is done after the last fault."""
        have = len(self._job.epochs)
        self._job.await_that(f"an epoch after {self.log[-1]}", lambda: len(self._job.epochs) > have, self._limit_s)


class Soak(Chaos):
    """All kinds of faults: kill, freeze, slow down, disconnect, and change the discovered slots.

    Args:
        most: Slots by host.
    """

    def __init__(self, job: Training, seed: int, limit_s: float, slots: Path, most: Mapping[str, int]) -> None:
        super().__init__(job, seed, limit_s)
        self._slots, self._most, self._offered = slots, most, most
        # Earlier offers, and until when each may have an effect.
        self._earlier: list[tuple[float, Mapping[str, int]]] = []
        self._cut_in = -1  # generation in which a worker was last disconnected
        self._kinds: list[Callable[[], bool]] = [self.kill, self.kill, self.freeze, self.slow, self.offer]
        if can_cut():
            self._kinds.append(self.cut_off)
        else:
            assert not os.environ.get("HOROVOD_TEST_COMPLETE"), "partitions cannot be tested here"
        self.kinds: Counter[str] = Counter()
        job.meanwhile = lambda: self._thaw(time.monotonic())

    def strike(self) -> None:
        """Cause one random fault; training must continue after it."""
        while not (kind := self._dice.choice(self._kinds))():
            self.between(0.2)
        self.kinds[kind.__name__] += 1
        self.between(0.5)
        if self._dice.random() < 0.5:
            self.goes_on()

    def freeze(self) -> bool:
        """Stop a worker, and usually continue it after up to 6 s, before or after the others have given it up."""
        if self._frozen.keys() & self._job.alive().keys() or not (
            victims := self._victims(sorted(self._job.alive().keys() - self._killed))
        ):
            return False
        birth = self._dice.choice(victims)
        is_member = birth in self._job.newest()
        for_s = math.inf if is_member and self._dice.random() < _FOR_GOOD else self._dice.uniform(0, 6)
        until = time.monotonic() + for_s
        self._note(f"freeze worker {birth} for {for_s:.1f} s")
        self._signal(birth, signal.SIGSTOP)
        self._frozen[birth] = until
        return True

    def _thaw(self, now: float) -> None:
        for birth in [birth for birth, until in self._frozen.items() if until <= now]:
            self._signal(birth, signal.SIGCONT)
            del self._frozen[birth]
            self._thawed[birth] = self._job.generation

    def slow(self) -> bool:
        """Let a worker run only a fraction of the time for a while."""
        victims = [one for one in self._job.alive() if one not in self._frozen]
        birth = self._dice.choice(sorted(victims))
        self._note(f"slow down worker {birth}")
        for _ in range(5):
            stopped = time.monotonic()
            self._signal(birth, signal.SIGSTOP)
            self.between(0.2)
            self._signal(birth, signal.SIGCONT)
            if time.monotonic() - stopped > _SHORT_STOP_S:
                self._thawed[birth] = self._job.generation
            self.between(0.02)
        return True

    def cut_off(self) -> bool:
        """Disconnect a worker from its peers on other hosts, without either side being notified."""
        members = self._job.newest()
        victims = [birth for birth in self._victims(sorted(members)) if birth not in self._frozen]
        if not victims or not self._job.is_whole() or self._is_cut:
            return False
        birth = self._dice.choice(victims)
        with suppress(psutil.Error, KeyError):
            environ = psutil.Process(self._job.pids[birth]).environ()
            count = cut_links(self._job.pids[birth], int(environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]))
            if count > 0:
                self._cut_in = self._job.generation
                self._note(f"cut {count} links of worker {birth}")
                return True
        return False

    @property
    def _is_cut(self) -> bool:
        return self._job.generation <= self._cut_in

    def offer(self) -> bool:
        """Offer another number of slots on each host; a host without slots disappears."""
        few = {
            host: self._dice.randint(int(number == 0), slots) for number, (host, slots) in enumerate(self._most.items())
        }
        offered = self._most if self._dice.random() < 0.5 or sum(few.values()) < 2 else few
        self._note(f"offer {offered}")
        self._earlier.append((time.monotonic() + _OFFER_ACTS_S, self._offered))
        write_slots(self._slots, offered)
        self._offered = offered
        return True

    def _leaving(self) -> int:
        """Return how many workers may be about to leave.

        These are workers without a slot, by this offer or by an earlier one on which the launcher may still act. After
        a disconnection two more may leave, because the workers on each side blame one on the other side.
        """
        self._earlier = [(until, offered) for until, offered in self._earlier if until > time.monotonic()]
        offers = [self._offered, *(offered for _, offered in self._earlier)]
        on = Counter(self._host_of(process) for process in self._job.alive().values())
        without = sum(max(0, count - min(one.get(host, 0) for one in offers)) for host, count in on.items())
        return without + 2 * self._is_cut

    @staticmethod
    def _host_of(process: psutil.Process) -> str:
        try:
            return process.environ()["HOROVOD_HOSTNAME"]
        except (psutil.Error, KeyError):  # the process has ended, or is ending and has no memory any more
            return ""

    def end(self) -> None:
        self._thaw(float("inf"))  # also those that were to stay frozen
        write_slots(self._slots, self._most)

    def _signal(self, birth: int, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._job.pids[birth], number)


def write_slots(path: Path, offered: Mapping[str, int]) -> None:
    """Replace the file atomically, because the discovery script may read it at any time."""
    draft = path.with_suffix(".new")
    draft.write_text("".join(f"{host}:{slots}\n" for host, slots in offered.items() if slots))
    draft.rename(path)
