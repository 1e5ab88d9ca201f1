# SPDX-License-Identifier: Apache-2.0
"""Warnings about other libraries that reduce gradients, or fail to, in a program that uses Horovod.

The cases are DDP that reduces the same gradients, a torch.distributed group with one process, and Accelerate that
trains each rank alone. Each case is checked once, in hvd.init() and at an optimizer's first reduction.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel

from horovod import accelerate_on_cpu
from horovod.common import user_warnings
from horovod.common.context import default_context
from horovod.common.process_sets import ProcessSet
from horovod.torch_backend_names import GROUP_ALONE

_REDUCED_TWICE = (
    "The gradient of {name!r} is reduced twice: by DistributedDataParallel and by hvd.DistributedOptimizer. Use one of "
    "them: pass the plain model to hvd, or the plain optimizer to DDP."
)
# All models wrapped in DDP since this import; DDP offers no other way to find them, and its hooks are not visible.
_ddp_models: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


def _remember(module: Any, name: str, submodule: Any) -> None:
    if name == "module" and isinstance(module, DistributedDataParallel):
        _ddp_models.add(module)


def look(named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Warn of such cases at the first reduction of these parameters' gradients."""
    _warn_if_ddp_reduces(named)
    _warn_if_group_is_alone()


def _warn_if_ddp_reduces(named: Iterable[tuple[str, torch.Tensor]]) -> None:
    models = [model for model in _ddp_models if model.process_group.size() > 1]
    if not models:
        return
    reduced = {it for model in models for it in model.module.parameters() if not getattr(it, "_ddp_ignored", False)}
    first = next((name for name, parameter in named if parameter in reduced and parameter.requires_grad), None)
    if first is not None:
        user_warnings.warn(_REDUCED_TWICE.format(name=first))


def _warn_if_group_is_alone() -> None:
    size = default_context.topology.size
    if size > 1 and dist.is_available() and dist.is_initialized() and dist.get_world_size() == 1:
        user_warnings.warn_once(GROUP_ALONE.format(size=size))


class _AtInit:
    def bound(self, process_set: ProcessSet, /) -> None:
        if process_set is default_context.global_set:
            _warn_if_group_is_alone()
            accelerate_on_cpu.check_state()

    def unbound(self, process_set: ProcessSet, /) -> None:
        """Do nothing when a process set ends."""


def begin() -> None:
    """Watch for DDP models and check at hvd.init(). Call it once per process."""
    register_module_module_registration_hook(_remember)
    default_context.observe(_AtInit())
