# SPDX-License-Identifier: Apache-2.0
"""State of a PyTorch training: models, optimizers, samplers, schedulers, and any other Python values.

A handler saves, restores and synchronises one kind of object. The registry maps types to handlers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch

from horovod.common.context import default_context
from horovod.common.elastic import ObjectState, check_names
from horovod.common.slots import Slots
from horovod.torch.cuda_direct import confirm
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.functions import allgather_object as allgather_object
from horovod.torch.functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from horovod.torch.local_sgd import LocalOptimizer
from horovod.torch.mpi_ops import rank

_WORTH_MOVING_BYTES = 4096
_HOOK = "comm_hook"


def _copy_tensor(old: Any, value: Any) -> Any:
    """Copy a tensor, into `old` if it fits (slots.CopyLeaf); tensors with more than values are copied as objects."""
    if type(value) is not torch.Tensor or value.requires_grad or value.layout != torch.strided:
        return NotImplemented
    if type(old) is torch.Tensor and _is_like(old, value):
        return old.copy_(value)
    return value.clone()


def _is_like(old: torch.Tensor, value: torch.Tensor) -> bool:
    return _same_form(old, value) and old.dtype == value.dtype and old.device == value.device


def _same_form(old: torch.Tensor, value: torch.Tensor) -> bool:
    return old.shape == value.shape and old.stride() == value.stride()


_copied_from: set[int] = set()  # GPUs with copies to the host in flight


def _copy_to_host(old: Any, value: Any) -> Any:
    """Copy a tensor, from a GPU to pinned host memory if the user wants commits there (slots.CopyLeaf).

    Small tensors stay on the GPU, because load_state_dict may use them as they are (a learning rate) and moving them
    only costs time.
    """
    if type(value) is not torch.Tensor or not _belongs_on_host(value):
        return _copy_tensor(old, value)
    fits = type(old) is torch.Tensor and old.is_cpu and old.dtype == value.dtype and _same_form(old, value)
    target = old if fits else _pinned_like(value)
    _copied_from.add(value.get_device())
    return target.copy_(value.detach(), non_blocking=True)


def _belongs_on_host(value: torch.Tensor) -> bool:
    plain = value.layout == torch.strided and not value.requires_grad
    return value.is_cuda and plain and value.nbytes >= _WORTH_MOVING_BYTES and _commits_on_host()


def _commits_on_host() -> bool:
    return default_context.settings.text("HOROVOD_ELASTIC_COMMIT") == "host"


def _pinned_like(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(value, device="cpu", pin_memory=True)


def _await_copies() -> None:
    """Wait until the GPUs have finished the copies to the host."""
    while _copied_from:
        torch.cuda.synchronize(_copied_from.pop())


class StateHandler:
    """Handler that saves, restores and synchronises one object, `value`."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt the object to a new set of workers."""

    def set_value(self, value: Any) -> None:
        """Handle another object from now on, and save its state."""
        self.value = value
        self.save()


class StateDictHandler(StateHandler):
    """Handler for objects with state_dict and load_state_dict, such as learning rate schedulers."""

    # Tensors are copied on their own device by default, because not all objects move what they load back to it.
    _copy_leaf = staticmethod(_copy_tensor)

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.slots = Slots(self._copy_leaf)
        self.save()

    @property
    def _saved_state(self) -> Any:
        return self.slots.current

    def save(self) -> None:
        self.prepare()
        self.slots.keep()

    def prepare(self) -> None:
        """Copy the state; `slots.keep` then makes the copy the saved one."""
        with torch.no_grad():
            self.slots.prepare(self._state())
        if self._copy_leaf is _copy_to_host:
            _await_copies()

    def _state(self) -> Any:
        return self.value.state_dict()

    def _load_state(self, state: Any) -> None:
        self.value.load_state_dict(state)

    def load(self, saved: Any) -> None:
        """Restore what an earlier job saved."""
        self._load_state(saved)
        self.save()

    def restore(self) -> None:
        # Load a copy, because objects keep what they load and change it in place later.
        self._load_state(copy.deepcopy(self._saved_state))

    def sync(self) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), 0, f"{type(self).__name__}.sync"))
        self.save()


class ModelStateHandler(StateDictHandler):
    _copy_leaf = staticmethod(_copy_to_host)

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)

    def sync(self) -> None:
        state = self.value.state_dict()
        broadcast_parameters(state, root_rank=0)
        # Load the state if it has extra state, which is no tensor and so was not synchronised in place.
        if not all(isinstance(value, torch.Tensor) for value in state.values()):
            self.value.load_state_dict(state)
        self.save()


class OptimizerStateHandler(StateDictHandler):
    _copy_leaf = staticmethod(_copy_to_host)

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)

    def _state(self) -> Any:
        """Return the optimizer's state with that of its communication hook, which each rank keeps for itself."""
        state, hook = self.value.state_dict(), self._hook()
        return {**state, _HOOK: hook.state_dict()} if hasattr(hook, "state_dict") else state

    def _load_state(self, state: Any) -> None:
        of_hook, hook = state.get(_HOOK), self._hook()
        self.value.load_state_dict({key: value for key, value in state.items() if key != _HOOK})
        if of_hook is not None and hasattr(hook, "load_state_dict"):
            hook.load_state_dict(of_hook)

    def _hook(self) -> Any:
        return getattr(self.value, "_comm_hook", None)

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class LocalOptimizerHandler(StateHandler):
    """Handler for hvd.DiLoCo() and hvd.LocalSGD(). A lost worker costs the others nothing: they keep what they have.

    sync() gives all workers the global weights and momentum of the rank with the highest round. New workers begin
    with a fresh inner state and rank 0's options.
    """

    def save(self) -> None:
        """Do nothing: weights and inner state are not part of a commit."""

    def restore(self) -> None:
        """Do nothing: this worker continues with its own weights and inner state."""

    def sync(self) -> None:
        is_new = not self.value.core.has_state
        options = [{key: one for key, one in group.items() if key != "params"} for group in self.value.param_groups]
        options = broadcast_object(options, 0, "LocalOptimizer.sync")
        if is_new:
            for group, mine in zip(self.value.param_groups, options, strict=True):
                group.update(mine)
        self.value.core.sync()


class LocalModelHandler(StateHandler):
    """Handler for a model with parameters that a LocalOptimizer exchanges: only its other tensors are synchronised."""

    def __init__(self, model: torch.nn.Module, exchanged: set[int]) -> None:
        """Handle a model.

        Args:
            model: The model.
            exchanged: The ids of the parameters that optimizers exchange.
        """
        super().__init__(model)
        self._exchanged = exchanged

    def save(self) -> None:
        """Do nothing: weights are not part of a commit."""

    def restore(self) -> None:
        """Do nothing: this worker continues with its own weights."""

    def sync(self) -> None:
        """Give all workers rank 0's buffers and frozen parameters."""
        state = self.value.state_dict(keep_vars=True)
        others = {
            name: one.detach()
            for name, one in state.items()
            if isinstance(one, torch.Tensor) and id(one) not in self._exchanged
        }
        if others:
            broadcast_parameters(others, root_rank=0)


class SamplerStateHandler(StateDictHandler):
    def __init__(self, sampler: ElasticSampler) -> None:
        super().__init__(sampler)

    def reset(self) -> None:
        self.value.reset()


class TorchState(ObjectState):
    """State of a training with PyTorch, for hvd.elastic.run().

    commit() saves models, optimizers, samplers, schedulers and all other values; restore() loads what was saved; sync()
    gives all ranks the state of rank 0. A new model, optimizer or sampler that is assigned to its attribute is saved at
    once.

    Args:
        model: The model, in the attribute `model`.
        optimizer: The optimizer, in the attribute `optimizer`.
        **kwargs: More models, optimizers, samplers and schedulers, and any Python values, each in the attribute of its
            name.

    Raises:
        TypeError: A value cannot be copied.

    Example:
        >>> state = hvd.elastic.TorchState(model=torch.nn.Linear(2, 1), epoch=0)
        >>> state.epoch += 1
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        values = {"model": model, "optimizer": optimizer, **kwargs}
        found = {name: _handler_for(value) for name, value in values.items()}
        found = {name: _for_local_sgd(handler, found.values()) for name, handler in found.items()}
        self._handlers = {name: handler for name, handler in found.items() if handler is not None}
        for name, handler in self._handlers.items():
            object.__setattr__(self, name, handler.value)
        plain = {name: value for name, value in values.items() if name not in self._handlers}
        super().__init__(broadcast_object, rank, **plain)

    _copy_leaf = staticmethod(_copy_tensor)

    def _prepare(self) -> None:
        for handler in self._with_slots().values():
            handler.prepare()
        super()._prepare()

    def _keep(self) -> None:
        confirm(default_context)
        for name, handler in self._handlers.items():
            if name not in self._with_slots():
                handler.save()  # a user's own handler may raise, so run it while nothing else has changed
        for handler in self._with_slots().values():
            handler.slots.keep()
        super()._keep()

    def _with_slots(self) -> dict[str, StateDictHandler]:
        found = {name: one for name, one in self._handlers.items() if isinstance(one, StateDictHandler)}
        return {name: one for name, one in found.items() if type(one).save is StateDictHandler.save}

    def pin_commit(self) -> dict[str, Any]:
        missing = [name for name in self._handlers if name not in self._with_slots()]
        if missing:
            raise TypeError(
                f"{missing} cannot be written to disk, because their handlers are custom: derive the handlers from "
                "StateDictHandler, and do not override save"
            )
        objects = {name: handler.slots.pin() for name, handler in self._with_slots().items()}
        return {**super().pin_commit(), "objects": objects}

    def release_commit(self) -> None:
        super().release_commit()
        for handler in self._with_slots().values():
            handler.slots.release()

    def load_commit(self, content: dict[str, Any]) -> None:
        check_names("objects", content["objects"], self._handlers)
        for name, handler in self._with_slots().items():
            try:
                handler.load(content["objects"][name])
            except (RuntimeError, ValueError, KeyError) as error:
                raise ValueError(f"The checkpoint does not fit the state's {name!r}: {error}") from error
        super().load_commit(content)

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Take over rank 0's state completely or not at all, so that a commit never mixes two states."""
        marks = {name: handler.slots.mark for name, handler in self._with_slots().items()}
        try:
            for handler in self._handlers.values():
                handler.sync()
            super().sync()
        except BaseException:
            for name, handler in self._with_slots().items():
                handler.slots.go_back(marks[name])
            raise

    def reset(self) -> None:
        for handler in self._handlers.values():
            handler.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        handler = self.__dict__.get("_handlers", {}).get(name)
        if handler is not None:
            handler.set_value(value)
        super().__setattr__(name, value)


Registry = list[tuple[Any, Any]]

# The first entry whose type (or tuple of types) matches an object determines its handler.
_handler_registry: Registry = [
    (ElasticSampler, SamplerStateHandler),
    (LocalOptimizer, LocalOptimizerHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (torch.nn.Module, ModelStateHandler),
    ((torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau), StateDictHandler),
    (torch.cuda.amp.GradScaler, StateDictHandler),
]


def get_handler_registry() -> Registry:
    """Return the list of (type, handler class) in which TorchState finds handlers."""
    return _handler_registry


def set_handler_registry(registry: Registry) -> None:
    """Replace the list of handlers for states that are made from now on."""
    global _handler_registry
    _handler_registry = registry


def _handler_for(value: Any) -> Any:
    return next((handler(value) for kind, handler in _handler_registry if isinstance(value, kind)), None)


def _for_local_sgd(handler: Any, handlers: Iterable[Any]) -> Any:
    """Return the handler, or another one for a model whose parameters a LocalOptimizer among `handlers` exchanges."""
    if type(handler) is not ModelStateHandler:
        return handler
    optimizers = [one.value for one in handlers if isinstance(one, LocalOptimizerHandler)]
    found = {id(it) for one in optimizers for group in one.param_groups for it in group["params"] if it.requires_grad}
    is_exchanged = any(id(parameter) in found for parameter in handler.value.parameters())
    return LocalModelHandler(handler.value, found) if is_exchanged else handler
