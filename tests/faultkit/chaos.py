# SPDX-License-Identifier: Apache-2.0
"""Random faults, by a seed, for an elastic training job. After each one training must go on."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from faultkit.training import Training

_OF_MEMBERS = 0.8  # of all kills: those of whom only a start is lost show less

class Chaos:
    """Does things to `job`; never to the last worker that has the state. `recovered_s`: seconds from each fault to the
    next completed step (of all ranks) of the generation that it leads to."""

    def __init__(self, job: Training, seed: int, limit_s: float) -> None:
        self._job = job
        self._dice = random.Random(seed)
        self._limit_s = limit_s
        self._frozen: dict[int, float] = {}  # when to thaw, by birth id
        self._killed: set[int] = set()  # birth ids: whoever has got SIGKILL may seem to live for another moment
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
        """A random time passes."""
        self._job.listen_until(time.monotonic() + self._dice.uniform(0, longest_s))

    def _victims(self, births: Sequence[int]) -> list[int]:
        """Those of them after whose loss somebody would still have the state."""
        sure = [birth for birth in self._job.alive() if birth not in self._frozen and birth not in self._killed]
        safe = {birth for birth in sure if self._job.has_state(birth)}
        enough = len(safe) - self._leaving()
        return [birth for birth in births if enough > (birth in safe)]

    def _leaving(self) -> int:
        """How many workers may be on their way out, nobody knows which."""
        return 0

    def kill(self) -> bool:
        """SIGKILL to anybody: mostly a member, sometimes one that is only starting. Whether there was one to kill."""
        victims = self._victims(sorted(self._job.alive().keys() - self._killed))
        newest = self._job.stepped.get(self._job.generation, {})
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
        """Sometimes wait until it is over, and sometimes let the next fault come in the middle of it."""
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
        """Whatever was done, epochs go by."""
        have = len(self._job.epochs)
        self._job.await_that(f"an epoch after {self.log[-1]}", lambda: len(self._job.epochs) > have, self._limit_s)


class Soak(Chaos):
    """All kinds of faults: kill, freeze, slow down, add and remove slots by the file that the discovery prints."""

    def __init__(self, job: Training, seed: int, limit_s: float, slots: Path, most: int) -> None:
        super().__init__(job, seed, limit_s)
        self._slots, self._most, self._offered = slots, most, most
        job.meanwhile = lambda: self._thaw(time.monotonic())

    def strike(self) -> None:
        """One random fault; then training must go on."""
        kinds: list[Callable[[], bool]] = [self.kill, self.kill, self.freeze, self.slow, self.offer]
        while not self._dice.choice(kinds)():
            self.between(0.2)
        self.between(0.5)
        if self._dice.random() < 0.5:
            self.goes_on()

    def freeze(self) -> bool:
        """SIGSTOP, and SIGCONT after a while: sooner or later than the others give it up."""
        if self._frozen or not (victims := self._victims(sorted(self._job.alive().keys() - self._killed))):
            return False
        birth = self._dice.choice(victims)
        until = time.monotonic() + self._dice.uniform(0, 6)
        self._note(f"freeze worker {birth} for {until - time.monotonic():.1f} s")
        self._signal(birth, signal.SIGSTOP)
        self._frozen[birth] = until
        return True

    def _thaw(self, now: float) -> None:
        for birth in [birth for birth, until in self._frozen.items() if until <= now]:
            self._signal(birth, signal.SIGCONT)
            del self._frozen[birth]

    def slow(self) -> bool:
        """A worker that gets little of a processor for a while."""
        victims = [one for one in self._job.alive() if one not in self._frozen]
        birth = self._dice.choice(sorted(victims))
        self._note(f"slow down worker {birth}")
        for _ in range(5):
            self._signal(birth, signal.SIGSTOP)
            self.between(0.2)
            self._signal(birth, signal.SIGCONT)
            self.between(0.02)
        return True

    def offer(self) -> bool:
        """Another number of slots."""
        count = self._dice.choice([2, *range(3, self._most), *[self._most] * 3])
        self._note(f"offer {count} slots")
        write_slots(self._slots, count)
        self._offered = count
        return True

    def _leaving(self) -> int:
        return max(0, len(self._job.alive()) - self._offered)

    def end(self) -> None:
        self._thaw(float("inf"))
        write_slots(self._slots, self._most)

    def _signal(self, birth: int, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._job.pids[birth], number)


def write_slots(path: Path, count: int) -> None:
    """All at once: the discovery script may read it at any moment."""
    draft = path.with_suffix(".new")
    draft.write_text(f"localhost:{count}\n")
    draft.rename(path)
