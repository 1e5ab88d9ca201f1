# SPDX-License-Identifier: Apache-2.0
"""Runs of an optimizer's communication hook in one round, advanced as collectives complete and ended on all ranks.

At the end of a round's exchange all ranks have begun the same buckets. They then report to each other, in one small
message, whether they have finished. Otherwise, if the hook failed on one rank, the other ranks would wait for its
collectives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from horovod.common.calls import Call
from horovod.common.context import default_context
from horovod.common.exceptions import HorovodInternalError, HorovodMismatchError
from horovod.torch.gradients.conversations import Asking, Conversation, ask
from horovod.torch.gradients.known_optimizers import KnownOptimizer
from horovod.torch.gradients.round_messages import Pending
from horovod.torch.gradients.rounds import Place
from horovod.torch.hooks.bucket import Bucket, CommHook
from horovod.torch.hooks.comparison import share
from horovod.torch.hooks.flat import FlatBucket
from horovod.torch.hooks.runs import HookRun

_TOPIC = "hook."
# Seconds for which a rank waits for the others' collectives before it asks them whether a hook has failed.
_PATIENCE_S = 1.0
_SLICE_S = 0.002  # longest wait for one of several collectives
_FAILED = (
    "The communication hook {hook} failed on rank {rank} in {text}. Gradients were left as they were before the "
    "exchange."
)


class BucketRuns:
    """Runs of the hook that have begun and whose results have not been copied to the gradients."""

    def __init__(self, optimizer: KnownOptimizer, reduction: Call) -> None:
        self._optimizer = optimizer
        self._reduction = reduction
        self._begun: dict[int, tuple[HookRun, FlatBucket]] = {}  # by the index of the bucket
        self._lock = threading.RLock()  # with several devices autograd fills buckets from several threads
        # Number of hook failures in this world. Wire names contain it, because failed runs leave operations behind.
        self._failures = 0
        self._world: object = None

    def __bool__(self) -> bool:
        return bool(self._begun)

    def start(self, hook: CommHook, flat: FlatBucket, bucket_of: Callable[[Callable[[str], str]], Bucket]) -> HookRun:
        """Begin a run. `bucket_of` makes the bucket from a function that makes the names of its stages."""
        with self._lock:
            self.advance()
            run = HookRun(hook, bucket_of(lambda stage: self._wire_name(flat.index, stage)))
            self._begun[flat.index] = run, flat
            return run

    def advance(self) -> None:
        """Continue all runs whose collectives have completed."""
        with self._lock:
            for run, _ in list(self._begun.values()):
                run.advance()

    def landed(self, index: int) -> None:
        """Remove a run, because its result has been copied to the gradients."""
        with self._lock:
            self._begun.pop(index, None)

    def clear(self) -> None:
        """End all runs."""
        with self._lock:
            begun, self._begun = self._begun, {}
            for run, flat in begun.values():
                if run.result is None:
                    flat.drop()
                run.abandon()

    def complete(self, place: Place, description: str) -> Conversation:
        """Continue all runs until they have ended on all ranks. Raise on all ranks if a hook has failed on any."""
        while True:
            waits = yield from self._go_on()
            failed = self._failed_run() is not None
            report = Pending(bytes([waits, failed]), place, self._optimizer, _TOPIC)
            while waits and not report.is_complete():
                self.advance()
                yield _Waits(self._unfinished(), report, _PATIENCE_S)
            answer = yield report
            if answer[1]:
                yield from self._raise_failure(place, description)
            if not answer[0]:
                return

    def _go_on(self) -> Asking[bool]:
        """Continue the runs until all have ended or one has failed. Return True if collectives take too long."""
        give_up = time.monotonic() + _PATIENCE_S
        while True:
            self.advance()
            waiting = self._unfinished()
            if not waiting or self._failed_run() is not None:
                return False
            left_s = give_up - time.monotonic()
            if left_s <= 0:
                return True
            yield _Waits(waiting, None, left_s)

    def _unfinished(self) -> list[HookRun]:
        """Return the runs that have not ended, in the order of their buckets."""
        return [run for _, (run, _) in sorted(self._begun.items()) if not run.is_over]

    def _failed_run(self) -> HookRun | None:
        failed = [index for index, (run, _) in self._begun.items() if run.error is not None]
        return self._begun[min(failed)][0] if failed else None

    def _raise_failure(self, place: Place, description: str) -> Conversation:
        run = self._failed_run()
        error, text = None, ""
        if run is not None:
            error = run.error
            if isinstance(error, HorovodInternalError) and not isinstance(error, HorovodMismatchError):
                raise error  # the world has ended
            text = f"bucket {run.bucket.index} of {self._optimizer.described_as}: {type(error).__name__}: {error}"
        ranks = self._optimizer.process_set.ranks or [0]
        index = ranks.index(default_context.topology.rank)
        texts = yield from ask(share(text.encode(), index, len(ranks)), place, self._optimizer, _TOPIC)
        rank, said = next((rank, said) for rank, said in zip(ranks, texts, strict=True) if said)
        self._count_failure()
        raise RuntimeError(_FAILED.format(hook=description, rank=rank, text=said.decode())) from error

    def _count_failure(self) -> None:
        if self._world is not default_context.world:
            self._world, self._failures = default_context.world, 0
        self._failures += 1

    def _wire_name(self, index: int, stage: str) -> str:
        again = self._failures if self._world is default_context.world else 0
        return self._optimizer.hook_name(f"{index}.{stage}" + (f".after{again}" if again else ""))


class _Waits:
    """Object that a conversation yields to wait until a run can continue or a report has its answer.

    A rank continues any run that can continue: while the collectives of one bucket are in flight, it compresses the
    next one.
    """

    def __init__(self, runs: list[HookRun], report: Pending | None, limit_s: float) -> None:
        self._runs = runs
        self._report = report
        self._give_up = time.monotonic() + limit_s

    def is_complete(self) -> bool:
        if time.monotonic() >= self._give_up or any(run.can_advance() for run in self._runs):
            return True
        return self._report is not None and self._report.is_complete()

    def wait(self, limit_s: float) -> bool:
        """Wait for at most `limit_s`. Return True if the conversation can continue."""
        if len(self._runs) == 1 and self._report is None:
            return self._runs[0].wait(limit_s)
        give_up = time.monotonic() + limit_s
        while not self.is_complete() and time.monotonic() < give_up:
            if self._report is not None:
                self._report.wait(min(_SLICE_S, limit_s))
            else:
                self._runs[0].wait(min(_SLICE_S, limit_s))
        return self.is_complete()

    def answer(self) -> bytes:
        """Wait until the conversation can continue."""
        self.wait(max(0.0, self._give_up - time.monotonic()))
        return b""
