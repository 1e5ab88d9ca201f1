# SPDX-License-Identifier: Apache-2.0
"""hvd.LocalSGD and hvd.DiLoCo: workers train alone for many steps and exchange weights in rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from horovod.common.context import default_context
from horovod.common.local_sgd import AVERAGE, Core, Options, OuterSgd, outer_of
from horovod.common.process_set import ProcessSet, global_process_set
from horovod.torch.graph import leaves_graph
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.wrapping import WrappedOptimizer

Tensor = torch.Tensor
Floats = npt.NDArray[np.float32]
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_METHODS = ("step", "zero_grad", "state_dict", "load_state_dict", "param_groups")


class ModelWeights:
    """The parameters of an optimizer, by name. Implements horovod.common.local_sgd.Weights."""

    def __init__(self, named: Sequence[tuple[str, Tensor]]) -> None:
        for name, parameter in named:
            if parameter.dtype not in _DTYPES:
                raise ValueError(
                    f"Local SGD supports parameters of float32, float16 and bfloat16, and {name!r} is of "
                    f"{str(parameter.dtype).removeprefix('torch.')}"
                )
        self._parameters = dict(named)
        self._streams: dict[torch.device, Any] = {}

    def names_and_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(name, tuple(parameter.shape)) for name, parameter in self._parameters.items()]

    def read(self, names: Sequence[str]) -> list[Floats]:
        return self.start_read(names)()

    def start_read(self, names: Sequence[str]) -> Callable[[], list[Floats]]:
        """Begin to copy parameters to the host. The copy from a GPU runs beside the compute stream."""
        waits: list[Callable[[], object]] = []
        copies = [self._start_copy(self._parameters[name].detach(), waits) for name in names]

        def finish() -> list[Floats]:
            for wait in waits:
                wait()
            return [copy.numpy() for copy in copies]

        return finish

    def _start_copy(self, value: Tensor, waits: list[Callable[[], object]]) -> Tensor:
        if not value.is_cuda:
            return value.to("cpu", torch.float32, copy=True)
        snapshot = value.to(torch.float32, copy=True).contiguous()  # on the compute stream; the next step may change it
        stream = self._streams.get(value.device)
        if stream is None:
            stream = self._streams[value.device] = torch.cuda.Stream(value.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(value.device))
        host = torch.empty(snapshot.shape, dtype=torch.float32, pin_memory=True)
        with torch.cuda.stream(stream):
            host.copy_(snapshot, non_blocking=True)
            snapshot.record_stream(stream)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(stream)
        waits.append(event.synchronize)
        return host

    @torch.no_grad()
    def write(self, values: Mapping[str, Floats]) -> None:
        for name, value in values.items():
            self._parameters[name].copy_(torch.from_numpy(value))


class LocalOptimizer(torch.optim.Optimizer):
    """Optimizer returned by hvd.DiLoCo() and hvd.LocalSGD(). Its parameter groups and state are the inner optimizer's.

    Attributes:
        inner: The optimizer that makes the steps on this worker.
        core: The rounds of this worker.
    """

    inner: Any = None

    def __init__(self, inner: Any, core: Core) -> None:
        groups, defaults = list(inner.param_groups), dict(getattr(inner, "defaults", {}))
        super().__init__(groups, defaults)
        self.core = core
        self.inner = inner
        self._exchanged = {id(it) for group in groups for it in group["params"] if it.requires_grad}

    # torch's own constructor assigns both attributes before there is an inner optimizer; that has no effect.

    @property
    def param_groups(self) -> Any:
        return [] if self.inner is None else self.inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: Any) -> None:
        if self.inner is not None:
            self.inner.param_groups = groups

    @property
    def state(self) -> Any:
        return {} if self.inner is None else self.inner.state

    @state.setter
    def state(self, state: Any) -> None:
        if self.inner is not None:
            self.inner.state = state

    @leaves_graph
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make an inner step, then start, advance or merge a round if one is due."""
        self._check_parameters()
        self.core.begin()
        loss = self.inner.step() if closure is None else self.inner.step(closure)
        self.core.step()
        return loss

    def _check_parameters(self) -> None:
        groups = self.param_groups
        if any(it.requires_grad and id(it) not in self._exchanged for group in groups for it in group["params"]):
            raise ValueError(
                "DiLoCo: a parameter was added or unfrozen after the optimizer was wrapped, so that it would not be "
                "exchanged: call finish(), and wrap the inner optimizer again"
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none=set_to_none)

    @leaves_graph
    def finish(self) -> None:
        """Exchange what was trained since the last round, so that all workers have equal weights.

        Every rank calls this at the end of training. A worker that calls it waits for the others.
        """
        self.core.finish()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.inner is not None:
            raise ValueError("DiLoCo: add parameter groups to the inner optimizer before it is wrapped")

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the inner optimizer and of the rounds: counters, global weights and momentum."""
        outer = self.core.state_dict()
        for key in ("weights", "momentum"):
            outer[key] = {name: torch.from_numpy(value) for name, value in outer[key].items()}
        return {"inner": self.inner.state_dict(), "outer": outer}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what state_dict() returned, perhaps with another number of workers. Every rank calls this.

        Load the model's own state too, before the first step.
        """
        if set(state_dict) != {"inner", "outer"}:
            raise ValueError(
                f"state_dict: expected that of hvd.DiLoCo() with 'inner' and 'outer', not {sorted(state_dict)}"
            )
        outer = dict(state_dict["outer"])
        for key in ("weights", "momentum"):
            outer[key] = {name: np.array(value.cpu().numpy(), np.float32) for name, value in outer[key].items()}
        self.core.load_state_dict(outer)
        self.inner.load_state_dict(state_dict["inner"])


def DiLoCo(  # noqa: N802 - stands beside torch's classes
    inner: torch.optim.Optimizer,
    outer: Any = None,
    *,
    every: int | None = None,
    every_seconds: float | None = None,
    fragments: int = 1,
    delay: int = 0,
    merge: float = 0.0,
    wire: str = "fp32",
    across: str = "ranks",
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    process_set: ProcessSet = global_process_set,
    deadline_s: float = 30.0,
) -> LocalOptimizer:
    """Return an optimizer with which workers train alone and exchange their weights in rounds.

    Each worker makes the inner optimizer's steps on its own. In a round, an outer optimizer moves the global weights
    towards the workers' average, and the workers continue from there with their inner state. All workers hold the same
    bits after a round. Call finish() of the returned optimizer on every rank when training ends.

    Args:
        inner: The optimizer of each worker, usually AdamW.
        outer: Rule by which the global weights follow the workers' average: a dict or an optimizer such as
            torch.optim.SGD with lr, momentum and nesterov. By default lr=0.7, momentum=0.9 and nesterov=True.
        every: Number of inner steps after which each fragment is exchanged. Give this or `every_seconds`.
        every_seconds: Number of seconds after which each fragment is exchanged. Workers are weighted by the steps that
            they made.
        fragments: Number of parts of the model that are exchanged one after the other.
        delay: Number of inner steps that a worker makes during an exchange, before it merges the result.
        merge: Share of the worker's own weights when it merges, at least 0 and below 1.
        wire: Format of values on the wire: 'fp32', 'bf16', 'int8' or 'int4'.
        across: 'ranks' if each rank is a worker, or 'hosts' if the ranks of a host train synchronously as one worker.
        named_parameters: What model.named_parameters() returns. Its names tell the layers of which fragments are made.
            By default each parameter is a layer.
        process_set: The ranks that take part. By default all ranks of the job.
        deadline_s: Seconds after the first worker is ready at which an exchange begins without the late workers.

    Returns:
        The optimizer. Its parameter groups and its state are those of `inner`.

    Raises:
        ValueError: An argument is not valid.

    Example:
        >>> inner = torch.optim.AdamW(torch.nn.Linear(2, 1).parameters())
        >>> optimizer = hvd.DiLoCo(inner, every=50)
    """
    options = Options(
        every=every,
        every_seconds=every_seconds,
        fragments=fragments,
        delay=delay,
        merge=merge,
        wire=wire,
        outer=outer_of(outer),
        across=across,
        process_set=process_set,
        deadline_s=deadline_s,
    )
    missing = [name for name in _METHODS if not hasattr(inner, name)]
    if missing:
        raise ValueError(f"inner must be a torch optimizer, and {type(inner).__name__} has no {missing[0]}")
    if isinstance(inner, LocalOptimizer):
        raise ValueError("inner is a hvd.DiLoCo already; wrap an optimizer only once")
    if across == "ranks" and isinstance(inner, WrappedOptimizer):
        raise ValueError(
            "inner is a hvd.DistributedOptimizer, which averages gradients in each step: pass the optimizer that it "
            "wraps, or across='hosts'"
        )
    named = _named(inner, named_parameters)
    core = Core(ModelWeights(named), options)
    if across == "hosts" and not isinstance(inner, WrappedOptimizer):
        inner = DistributedOptimizer(inner, named_parameters=named, process_set=_host_set())
    return LocalOptimizer(inner, core)


def LocalSGD(  # noqa: N802 - stands beside torch's classes
    optimizer: torch.optim.Optimizer, every: int | None = None, **options: Any
) -> LocalOptimizer:
    """Return an optimizer with which workers train alone and average their weights in rounds.

    It is hvd.DiLoCo() whose outer rule takes the workers' average as it is.

    Args:
        optimizer: The optimizer of each worker.
        every: Number of inner steps after which each fragment is exchanged. Give this or `every_seconds`.
        **options: More arguments of hvd.DiLoCo().

    Returns:
        The optimizer. Its parameter groups and its state are those of `optimizer`.

    Raises:
        ValueError: An argument is not valid.

    Example:
        >>> inner = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
        >>> optimizer = hvd.LocalSGD(inner, every=10)
    """
    if "outer" in options:
        raise ValueError("outer: hvd.LocalSGD() takes the average; use hvd.DiLoCo() for another outer rule")
    return DiLoCo(optimizer, _average(), every=every, **options)


def _average() -> OuterSgd:
    return AVERAGE


def _named(inner: Any, named: Iterable[tuple[str, Tensor]] | None) -> list[tuple[str, Tensor]]:
    """Return the optimizer's parameters by name, in the model's order."""
    found = [
        (f"parameter_{number}_{index}", parameter)  # without a separator each is a layer of its own
        for number, group in enumerate(inner.param_groups)
        for index, parameter in enumerate(group["params"])
        if parameter.requires_grad
    ]
    if named is None:
        return found
    mine = {parameter for _, parameter in found}
    given = [(name, parameter) for name, parameter in named if parameter in mine]
    if len(given) != len(mine) or len(dict(given)) != len(given):
        raise ValueError(
            f"named_parameters must name each of the optimizer's {len(mine)} parameters once, and it names {len(given)}"
        )
    return given


def _host_set() -> ProcessSet:
    """Return the set of this host's ranks. Every rank calls this."""
    hosts: dict[str, list[int]] = {}
    for rank, host in enumerate(default_context.hosts):
        hosts.setdefault(host, []).append(rank)
    sets = {host: default_context.set_registration.own(ranks) for host, ranks in hosts.items()}
    return sets[default_context.hosts[default_context.topology.rank]]
