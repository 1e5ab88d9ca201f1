# SPDX-License-Identifier: Apache-2.0
"""The state of a PyTorch training: models, optimizers, samplers, schedulers, and any Python values beside them.

A handler knows how one kind of object is saved, restored and synchronised; the registry says which kind gets which.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from horovod.common.elastic import ObjectState
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.functions import allgather_object as allgather_object
from horovod.torch.functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from horovod.torch.mpi_ops import rank


class StateHandler:
    """Saves, restores and synchronises one object, `value`."""

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
        """Handle another object from now on, and save it."""
        self.value = value
        self.save()


class StateDictHandler(StateHandler):
    """For what has state_dict and load_state_dict, both of plain values: learning rate schedulers, gradient scalers."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self._saved_state = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # A copy: objects keep what they load, and change it in place afterwards.
        self.value.load_state_dict(copy.deepcopy(self._saved_state))

    def sync(self) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), 0, f"{type(self).__name__}.sync"))
        self.save()


class ModelStateHandler(StateDictHandler):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)

    def sync(self) -> None:
        state = self.value.state_dict()
        broadcast_parameters(state, root_rank=0)
        if not all(isinstance(value, torch.Tensor) for value in state.values()):  # extra state is not in place
            self.value.load_state_dict(state)
        self.save()


class OptimizerStateHandler(StateDictHandler):
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class SamplerStateHandler(StateDictHandler):
    def __init__(self, sampler: ElasticSampler) -> None:
        super().__init__(sampler)

    def reset(self) -> None:
        self.value.reset()


class TorchState(ObjectState):
    """The state of a training: model, optimizer, and as keywords samplers, schedulers and any Python values.

    Assigning a new model, optimizer, ... to its attribute saves it at once.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        values = {"model": model, "optimizer": optimizer, **kwargs}
        found = {name: _handler_for(value) for name, value in values.items()}
        self._handlers = {name: handler for name, handler in found.items() if handler is not None}
        for name, handler in self._handlers.items():
            object.__setattr__(self, name, handler.value)
        plain = {name: value for name, value in values.items() if name not in self._handlers}
        super().__init__(broadcast_object, rank, **plain)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        for handler in self._handlers.values():
            handler.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        handler = self.__dict__.get("_handlers", {}).get(name)
        if handler is not None:
            handler.set_value(value)
        super().__setattr__(name, value)


Registry = list[tuple[Any, Any]]

# The first entry whose type (or tuple of types) fits an object decides on its handler.
_handler_registry: Registry = [
    (ElasticSampler, SamplerStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (torch.nn.Module, ModelStateHandler),
    ((torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau), StateDictHandler),
    (torch.cuda.amp.GradScaler, StateDictHandler),
]


def get_handler_registry() -> Registry:
    """The list of (type, handler class) by which TorchState finds handlers."""
    return _handler_registry


def set_handler_registry(registry: Registry) -> None:
    """Replace the list, for states that are made from now on."""
    global _handler_registry
    _handler_registry = registry


def _handler_for(value: Any) -> Any:
    return next((handler(value) for kind, handler in _handler_registry if isinstance(value, kind)), None)
