# SPDX-License-Identifier: Apache-2.0
"""Reduction of one optimizer's gradients between backward() and step().

A hook on each parameter reports its gradient as soon as autograd has accumulated it. A round begins with the first
backward pass after a step and ends with synchronize(). In it every parameter counts down its passes; at zero its
gradient is reduced, alone or with its group. Ranks match gradients by name, not by order.

Ranks whose graphs or numbers of passes differ would wait for each other indefinitely. So ranks first exchange which
gradients are due, in one small allreduce in step(), or at the end of backward() if that waits for gradients. `rounds`
decides what follows. Several optimizers of one backward() exchange their messages concurrently. No gradient is sent
before an optimizer's first exchange, in which ranks agree on names.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from horovod._engine import Arrivals, GradientHomes
from horovod.common.context import default_context
from horovod.common.exceptions import HorovodMismatchError
from horovod.common.process_set import ProcessSet
from horovod.torch import other_reductions
from horovod.torch.cuda_direct import current_stream, follow_streams
from horovod.torch.dynamo import outside_dynamo
from horovod.torch.gradients.buckets import GradientBuckets
from horovod.torch.gradients.conversations import Conversation, hold, hold_one, in_spite_of_failures
from horovod.torch.gradients.first_look import FirstLook
from horovod.torch.gradients.flights import Flights
from horovod.torch.gradients.gradient import Gradient, Gradients, Leave, Reduction
from horovod.torch.gradients.known_optimizers import KnownOptimizer
from horovod.torch.gradients.overlap import Overlap, gpus_are_shared
from horovod.torch.gradients.round_messages import Pending
from horovod.torch.gradients.rounds import Differ, Place, Reduce, Round, is_due
from horovod.torch.hooks.bucket import CommHook

Tensor = torch.Tensor

# Gradients wait until they have this many bytes together, or until the end of backward().
# Each reduction needs a call and a wake-up, which for a small gradient cost more than the reduction itself.
_CARGO_BYTES = 512 * 1024
_NO_LIMIT = 1 << 62

_NOTHING_ELSE = Reduce(b"", ())

# On a GPU that this rank does not share, 48 * 512 KiB of gradients are sent together.
# That makes few calls, and sends gradients early enough to overlap with backward().
# Ranks that share a GPU take turns on it, so they gain nothing from an exchange before the end of backward().
_TIMES_ON_GPU = 48

_TOO_MANY_PASSES = (
    "The gradient of {name} was computed again before optimizer.step(): more than backward_passes_per_step={passes} "
    "backward passes. Raise backward_passes_per_step to accumulate gradients over several passes, or call "
    "optimizer.step() or optimizer.zero_grad() between them."
)
_HOOK_TOO_LATE = (
    "hvd.register_comm_hook() comes too late: this optimizer has exchanged gradients with other ranks. Register the "
    "hook before the first backward pass."
)
_TOO_LATE = (
    "The gradient of {name} was computed by a later backward pass than on other ranks: they reduced it, with zeros for "
    "this rank, at the end of an earlier one. Before each optimizer.step() all ranks must compute it in the same "
    "backward pass, or not at all. HOROVOD_TORCH_WAIT_IN_BACKWARD=0 defers all of it to optimizer.step()."
)


class Weights:
    """Weights of gradients on devices: the bytes that they count as towards _CARGO_BYTES."""

    def __init__(self, overlap: Overlap, process_set: ProcessSet) -> None:
        self.overlap = overlap
        self._process_set = process_set
        self._shares_gpus: bool | None = None  # None: no parameter is on a GPU

    def weigh(self, parameter: Tensor) -> int:
        if not parameter.is_cuda:
            return _NO_LIMIT
        if self._shares_gpus is None:
            self._shares_gpus = gpus_are_shared(self._process_set)
        return 0 if self._shares_gpus else parameter.nbytes // _TIMES_ON_GPU + 1

    def have_changed(self) -> bool:
        """Return True if the ranks have found out meanwhile that the guess whether they share GPUs was wrong."""
        if self._shares_gpus is None or self._shares_gpus == gpus_are_shared(self._process_set):
            return False
        self._shares_gpus = not self._shares_gpus
        return True


class GradientReducer:
    """Reducer of one optimizer's gradients, driven by hooks on its parameters."""

    def __init__(
        self,
        reduction: Reduction,
        named: Sequence[tuple[str, Tensor]],
        passes: int,
        wait_in_backward: bool,
        overlap: Overlap,
        buckets: GradientBuckets | None,
        homes: GradientHomes | None,
        check_parameters: bool = False,
        description: str = "an optimizer",
    ) -> None:
        self._reduction = reduction
        self._is_first = True
        self._known = KnownOptimizer(reduction.call.process_set, description)
        self._look = FirstLook(self._known, check_parameters)
        self._passes = passes
        self._wait_in_backward = wait_in_backward
        self._homes = homes
        self._gradients = Gradients(reduction)
        self._gradients.restart(passes)
        self._table = self._gradients.table  # counts each gradient's passes in this round
        self._flights = Flights(reduction, self._gradients, buckets, homes, self._known)
        # Hooks get a weak reference, so that they neither keep the optimizer alive nor act after it is gone.
        self._weights = Weights(overlap, reduction.call.process_set)
        self._arrived = Arrivals(_CARGO_BYTES if overlap.of(named) else _NO_LIMIT, _notifier(weakref.ref(self)))
        self._callback_of: int | None = None  # id of the thread whose backward() will call _end_of_backward
        self._round = Round()
        self._lock = threading.Lock()  # with several devices autograd calls hooks from several threads
        self._speaking = threading.RLock()  # threads in backward() exchange messages one at a time
        for name, parameter in named:
            self.watch(name, parameter)

    # Registration

    def watch(self, name: str, parameter: Tensor) -> None:
        """Reduce a parameter's gradients from now on. If it needs no gradient yet, check again in each round."""
        self._known.add(name, parameter)
        self._hook(self._gradients.add(name, parameter))

    def _hook(self, gradient: Gradient) -> None:
        parameter = gradient.parameter
        if gradient.hook is None and parameter.requires_grad:
            register: Any = parameter.register_post_accumulate_grad_hook
            is_on_host = parameter.is_cpu
            nbytes, homes = (parameter.nbytes, self._homes) if is_on_host else (self._weights.weigh(parameter), None)
            # Gradients that are sent while backward() runs may have been computed on several streams.
            on_streams = self._weights.overlap.on_gpu and parameter.is_cuda
            streams = (current_stream, parameter.get_device()) if on_streams else (None, -1)
            hook = self._arrived.hook(gradient.number, nbytes, homes, *streams)
            self._gradients.hooked(gradient, register(hook))

    def _weigh_again(self) -> None:
        """Update the weights of gradients on GPUs, because ranks may have found out by now whether they share GPUs."""
        if self._weights.have_changed():
            self._hook_again([it for it in self._gradients if it.parameter.is_cuda])

    def _hook_again(self, gradients: Iterable[Gradient]) -> None:
        for gradient in gradients:
            if gradient.hook is not None:
                gradient.hook.remove()
                gradient.hook = None
                self._hook(gradient)

    def unwatch(self) -> None:
        """Remove all hooks."""
        self._known.forget()
        for gradient in self._gradients:
            if gradient.hook is not None:
                gradient.hook.remove()
                gradient.hook = None

    def make_groups(self, groups: Sequence[Sequence[str]]) -> None:
        """Reduce the named parameters of each list as one unit."""
        self._gradients.make_groups(groups)

    def attach(self, hook: CommHook, bucket_bytes: int) -> CommHook:
        """Reduce gradients in buckets by a communication hook. Return it, or the equal one that is already attached."""
        attached = self._flights.comm_hook.hook
        if attached is not None and attached == hook and self._flights.comm_hook.has_exchanged:
            return attached  # elastic: the training function registers its hook again after a reset
        if self._flights.comm_hook.has_exchanged:
            raise RuntimeError(_HOOK_TOO_LATE)
        self._flights.attach(hook, bucket_bytes)
        if not self._flights.comm_hook.leaves_gradients:
            self._homes = None
        self._hook_again(self._gradients)
        return hook

    # Rounds

    @property
    def busy(self) -> bool:
        """Return True if reductions are in flight, or wait only until ranks have agreed on names."""
        return bool(self._flights) or (not self._wait_in_backward and self._gradients.has_left)

    def set_passes(self, passes: int) -> None:
        self._passes = passes
        self.restart()

    def restart(self) -> None:
        """Drop the round: every parameter counts its passes from the start."""
        self._flights.clear()
        self._forget_arrivals()
        self._round = self._round.forgotten()
        self._gradients.restart(self._passes)

    @outside_dynamo
    def begin_anew(self) -> None:
        """Begin a new round, because the program has dropped or zeroed all gradients.

        Passes of an incomplete window of backward_passes_per_step are dropped, too. In a GAN, for example, the
        generator's backward() adds gradients to the discriminator's parameters, and zero_grad() drops them.
        """
        self.restart()

    def _forget_arrivals(self) -> None:
        self._arrived.take()  # not empty if a backward pass has failed
        self._arrived.take_streams()
        self._callback_of = None

    @outside_dynamo
    def stepped(self, ends_round: bool) -> None:
        """Record a step. `ends_round` is True if it used gradients as they were, and so has to end the round."""
        self._round = self._round.stepped()
        if ends_round and not self.busy:
            self.restart()

    @outside_dynamo
    def finish_round(self) -> None:
        """Reduce the gradients that no pass of this round has made due, too, and wait for everything.

        A parameter without a gradient contributes zeros, because other ranks, with another graph, may have a gradient
        for it.
        """
        try:
            self._look_around()
            while self._arrived or not self._round.complete:
                agree([self], Place.STEP)
            self._flights.wait()
        finally:
            self.restart()
        self._weigh_again()

    def _look_around(self) -> None:
        """Forget the state of earlier rounds if all ranks have joined, or have formed another world, since then."""
        if self._known.enter_era():
            self._round = Round()
            self._flights.clear()
            self._flights.comm_hook.enter_era()
            self._gradients.rename_all("")
            self._gradients.restart(self._passes)
            self._look.look_around()

    def _conversation(self, place: Place) -> Conversation:
        """Send the other ranks what is due here, and begin what is due on any rank."""
        # Nothing is submitted before all ranks have answered.
        # An earlier submission would wake a thread on another rank, which would slow down that rank's backward().
        due = self._due()
        standings = self._table.standings()
        if place is Place.BACKWARD and not is_due(standings):
            return  # not the last of backward_passes_per_step passes; ranks that are ahead wait
        for gradient in self._gradients.thawed(standings):
            self._hook(gradient)
        bundle = self._flights.make_bundle(due)
        look = self._look.said(partial(self._gradients.trained, standings))
        comm_hook = self._flights.comm_hook
        rank = default_context.topology.rank
        message = self._round.message(rank, place, standings, bundle, look, comm_hook.checksum)
        comm_hook.has_exchanged = True
        try:
            answer = yield Pending(message, place, self._known)
            self._round, decision = self._round.heard(answer)
            if isinstance(decision, Differ):
                raise HorovodMismatchError(f"{decision.text} (This rank was {place.value}.)")
            yield from comm_hook.settle(decision, place)
            if not self._known.has_agreed:
                self._gradients.rename(self._known.agree(decision.seen.names), self._known.suffix)
            if decision.seen.parameters_differ:
                yield from self._look.find_difference(decision.seen, place)
            self._look.is_over()
            self._begin(due, decision, will_wait=True)
            yield from comm_hook.complete(decision, place)
        except Exception:
            self.restart()
            raise

    def _complete(self) -> None:
        """Wait for the reductions that a conversation has begun, then show its warning."""
        try:
            self._flights.wait()
        except Exception:
            self.restart()
            raise
        if self._known.has_agreed:
            self._look.warn()
            if self._is_first:
                self._is_first = False
                other_reductions.look((it.name, it.parameter) for it in self._gradients)

    # Hooks

    def notified(self) -> None:
        """Handle a report of a hook: the first gradient of a pass, or one that brings the bytes to the limit."""
        if self._callback_of is None:
            self._look_around()
            self._callback_of = threading.get_ident()
            _in_backward.add(self)
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)
        if self._arrived.full and self._sends_early:
            # Small gradients wait for the end of backward(), where ranks agree to bundle them.
            leaves_small = self._wait_in_backward and self._gradients.bundles
            large = self._due(Leave.SMALL if leaves_small else Leave.NONE)
            self._begin(large, _NOTHING_ELSE, will_wait=False)

    @property
    def _sends_early(self) -> bool:
        """Return True if gradients may be sent before ranks have exchanged which ones are due."""
        return self._known.has_agreed and not (self._known.shares_parameters or self._flights.comm_hook.lacks_places)

    def _due(self, leave: Leave = Leave.NONE) -> list[int]:
        """Return the numbers of gradients that have completed their last pass since the last call."""
        with self._lock:
            due, refused = self._table.count_down(self._arrived.take())
            follow_streams(self._arrived.take_streams())
            if refused is not None:
                text = _TOO_LATE if self._gradients.is_lent(refused) else _TOO_MANY_PASSES
                raise AssertionError(text.format(name=self._gradients[refused].name, passes=self._passes))
            if due and self._round.complete:
                self._round = self._round.forgotten()  # the program has dropped its gradients past the optimizer
            self._gradients.look_at(due)
            return self._gradients.with_left(due, leave)

    def _begin(self, due: list[int], agreed: Reduce, will_wait: bool) -> None:
        """Begin to reduce these gradients, and those not due here that all ranks have agreed to reduce."""
        with self._lock:
            missing = self._gradients.agree(agreed)
            are_last = bool(agreed.wanted) and self._round.complete
            self._flights.start(due + missing, will_wait, are_last, agreed.bundled, not self._wait_in_backward)

    @outside_dynamo
    def _end_of_backward(self) -> None:
        """Exchange messages for all optimizers that had gradients in this pass, concurrently."""
        ended = [it for it in _in_backward if it._callback_of is not None and it._callback_of == self._callback_of]
        for reducer in ended:
            reducer._callback_of = None
            _in_backward.discard(reducer)
        if len(ended) == 1 and self._wait_in_backward:  # the common case
            agree(ended, Place.BACKWARD)
            return
        ended.sort(key=lambda it: it._known.number)
        waiting = [it for it in ended if it._wait_in_backward]
        early = [it._begin_early for it in ended if not it._wait_in_backward]
        in_spite_of_failures([*early, *(partial(agree, it, Place.BACKWARD) for it in _apart(waiting))])

    def _begin_early(self) -> None:
        if self._sends_early:
            self._begin(self._due(), _NOTHING_ELSE, will_wait=False)
        else:
            self._due(Leave.ALL)


def agree(reducers: Sequence[GradientReducer], place: Place) -> None:
    """Send other ranks what is due here for each optimizer, reduce what is due on any rank, and wait for it."""
    if len(reducers) == 1:
        with reducers[0]._speaking:
            hold_one(reducers[0]._conversation(place))
            reducers[0]._complete()
        return
    with ExitStack() as stack:
        for reducer in reducers:
            stack.enter_context(reducer._speaking)
        converse = partial(hold, [it._conversation(place) for it in reducers])
        in_spite_of_failures([converse, *(it._complete for it in reducers)])


def _apart(reducers: list[GradientReducer]) -> list[list[GradientReducer]]:
    """Split reducers into lists, usually one, so that those with common parameters are in different lists."""
    if not any(it._known.shares_parameters for it in reducers):
        return [reducers] if reducers else []
    lists: list[list[GradientReducer]] = []
    for reducer in reducers:
        for together in lists:
            if not any(reducer._known.shares_with(it._known) for it in together):
                together.append(reducer)
                break
        else:
            lists.append([reducer])
    return lists


_in_backward: weakref.WeakSet[GradientReducer] = weakref.WeakSet()  # reducers whose end-of-backward callback is queued


def _notifier(reducer: weakref.ref[GradientReducer]) -> Callable[[], None]:
    @outside_dynamo
    def notify() -> None:
        watching = reducer()
        if watching is not None:
            watching.notified()

    return notify
