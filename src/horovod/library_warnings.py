# SPDX-License-Identifier: Apache-2.0
"""Warnings if Lightning or Ignite sees one process in a job of several ranks, and so trains each rank alone.

Both ignore RANK and WORLD_SIZE unless the script asks for several processes. In a worker of a job with several ranks,
this module wraps the methods that begin a training when their modules are imported.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from horovod.common import torchrun_variables

ALONE = "{library} sees 1 process, but this job has {size} ranks: it trains each rank alone. {remedy}"
_TRAINER = (
    "Lightning",
    "Pass strategy='horovod' to Trainer() after `import horovod.torch.distributed.lightning`, or strategy='ddp' "
    "and, as devices, the number of ranks on each host.",
)
_FABRIC = ("Lightning Fabric", "Pass strategy='ddp' and, as devices, the number of ranks on each host.")
_IGNITE = (
    "Ignite",
    "Pass a backend to idist.Parallel() ('gloo', or 'nccl' for ranks with a GPU each), or call hvd.init() first.",
)
# For each module: the method that begins a training, the library, and the remedy.
_BEGINNINGS = {
    "lightning.pytorch.trainer.trainer": ("Trainer.fit", *_TRAINER),
    "pytorch_lightning.trainer.trainer": ("Trainer.fit", *_TRAINER),
    "lightning.fabric.fabric": ("Fabric.setup", *_FABRIC),
    "lightning_fabric.fabric": ("Fabric.setup", *_FABRIC),
    "ignite.distributed.launcher": ("Parallel.run", *_IGNITE),
    "ignite.engine.engine": ("Engine.run", *_IGNITE),
}


class _ImportWatch(importlib.abc.MetaPathFinder):
    """Import hook that wraps a module's method once the module has run. Python's own finder finds the module."""

    def __init__(self) -> None:
        # Modules that were being imported when the watch began. Lightning's modules import torch, which starts the
        # watch.
        self._unfinished: list[ModuleType] = []

    def begin(self) -> None:
        """Wrap the methods of modules that are imported already."""
        self._unfinished = [sys.modules[name] for name in _BEGINNINGS if name in sys.modules]
        self._wrap_unfinished()

    def _wrap_unfinished(self) -> None:
        self._unfinished = [module for module in self._unfinished if not _wrap(module)]

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        self._wrap_unfinished()
        if name not in _BEGINNINGS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        loader: Any = spec and spec.loader
        if loader is not None:
            loader.exec_module = functools.partial(_run_and_wrap, loader.exec_module)
        return spec


_import_watch = _ImportWatch()


def watch() -> None:
    """Wrap the libraries' methods when they are imported, if the job has several ranks. Safe to call twice."""
    if _import_watch in sys.meta_path or torchrun_variables.job_size(os.environ) == 1:
        return
    sys.meta_path.insert(0, _import_watch)
    _import_watch.begin()


def _run_and_wrap(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    run(module)
    _wrap(module)


def _wrap(module: ModuleType) -> bool:
    """Make the module's method warn. Return False if the module does not have the method yet."""
    path, library, remedy = _BEGINNINGS[module.__name__]
    class_name, _, name = path.partition(".")
    owner = getattr(module, class_name, None)
    method = getattr(owner, name, None)
    if method is None:
        return False

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "world_size", 1) == 1:  # Ignite's classes have no world_size
            _warn_if_alone(library, remedy)
        return method(self, *args, **kwargs)

    setattr(owner, name, wrapper)
    return True


def _warn_if_alone(library: str, remedy: str) -> None:
    size = torchrun_variables.job_size(os.environ)
    if size > 1 and not _can_reduce():
        from horovod.common import user_warnings

        user_warnings.warn_once(ALONE.format(library=library, size=size, remedy=remedy))


def _can_reduce() -> bool:
    """Return True if the script itself may reduce gradients: hvd.init() was called, or a process group exists."""
    context: Any = sys.modules.get("horovod.common.context")
    if context is not None and context.default_context.is_initialized:
        return True
    return bool(importlib.import_module("torch.distributed").is_initialized())
