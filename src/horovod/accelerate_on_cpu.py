# SPDX-License-Identifier: Apache-2.0
"""Support for Accelerate on machines without accelerators, where it would not see the ranks of a job.

Accelerate reads RANK and WORLD_SIZE only if it has found a device, or if it is told to use the CPU. Otherwise it trains
each process alone without a warning. In a worker that has its rank from this package, this module sets
ACCELERATE_USE_CPU when `accelerate` is imported. If torchrun started the worker, it changes nothing and warns.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.abc
import importlib.util
import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from horovod.common import torchrun_variables

VARIABLE = "ACCELERATE_USE_CPU"
_OUR_VALUE = "true"
ALONE = (
    "Accelerate sees 1 process, but this job has {size} ranks: it trains each rank alone. Without an accelerator, "
    "Accelerate looks for other processes only if it is told to use the CPU. Pass cpu=True to Accelerator() or "
    "PartialState(), pass use_cpu=True to TrainingArguments(), or set ACCELERATE_USE_CPU=true."
)
# Packages by which Accelerate recognises further kinds of accelerators.
_DEVICE_PACKAGES = ("torch_npu", "torch_mlu", "torch_musa", "torch_sdaa", "torch_neuronx", "torch_xla")
_is_set_by_us = False


class _ImportWatch(importlib.abc.MetaPathFinder):
    """Import hook that finds no module, and acts while `accelerate` is being imported.

    `import accelerate` looks for many submodules. Libraries look for `accelerate` itself only to learn whether it is
    installed, so that name is ignored.
    """

    def __init__(self) -> None:
        self._has_told = False
        self._has_wrapped = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.startswith("accelerate."):
            self.look()

    def look(self) -> None:
        """Set the variable and wrap the classes if Accelerate is imported, or is being imported."""
        if self._has_wrapped or "accelerate" not in sys.modules:
            return
        if not self._has_told:
            self._has_told = True
            tell_accelerate()
        self._has_wrapped = _wrap_states()


_import_watch = _ImportWatch()


def watch() -> None:
    """Act when `accelerate` is imported, or now if it is imported already. Safe to call twice."""
    if _import_watch not in sys.meta_path:
        sys.meta_path.insert(0, _import_watch)
    _import_watch.look()
    check_state()


def check_state() -> None:
    """Warn if Accelerate has already made its state and trains each rank alone.

    hvd.init() calls this function too, because under mpirun and srun the number of ranks is known only then.
    """
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    if state is not None and state._shared_state:
        _warn_if_alone(state())


def tell_accelerate() -> None:
    """Set ACCELERATE_USE_CPU in a worker of ours that has no accelerator, unless the user has set it.

    Remove it again if DeepSpeed is used, because the variable would turn off DeepSpeed, which has its own support of
    CPUs.
    """
    global _is_set_by_us
    if _uses_deepspeed(os.environ):
        if _our_value_stands(os.environ):
            del os.environ[VARIABLE]
    elif VARIABLE not in os.environ and _has_several_ranks_from_us(os.environ) and not _may_have_accelerator():
        os.environ[VARIABLE] = _OUR_VALUE
        _is_set_by_us = True


def _our_value_stands(environ: Mapping[str, str]) -> bool:
    return _is_set_by_us and environ.get(VARIABLE) == _OUR_VALUE


def _uses_deepspeed(environ: Mapping[str, str]) -> bool:
    return environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"


def _has_several_ranks_from_us(environ: Mapping[str, str]) -> bool:
    return torchrun_variables.ours(environ) >= {"RANK", "WORLD_SIZE"} and int(environ["WORLD_SIZE"]) > 1


def _may_have_accelerator() -> bool:
    """Return False if torch certainly sees no accelerator.

    Do not initialise a driver, because the process could not fork afterwards.
    """
    torch: Any = importlib.import_module("torch")
    if any(importlib.util.find_spec(package) for package in (*_DEVICE_PACKAGES, "habana_frameworks")):
        return True
    if torch.backends.mps.is_available():
        return True
    if hasattr(torch, "xpu") and torch.xpu._is_compiled():
        return True  # counting its devices would initialise their driver
    return torch.backends.cuda.is_built() and _may_have_gpu(torch.cuda, is_amd=bool(torch.version.hip))


def _may_have_gpu(cuda: Any, is_amd: bool) -> bool:
    """Return False if this host certainly has no GPU that this process may use.

    `torch.cuda.is_available()` initialises the driver, after which forked children cannot use a GPU. The management
    libraries (NVML, AMD SMI) count GPUs without the driver. They may be missing on a host with a GPU, such as NVIDIA's
    Jetson.
    """
    if not _has_gpu_driver(is_amd):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns if the driver does not run, which is no error here
        count = getattr(cuda, "_device_count_amdsmi" if is_amd else "_device_count_nvml", lambda: -1)()
    return bool(count != 0)


def _has_gpu_driver(is_amd: bool) -> bool:
    if is_amd:
        return os.path.exists("/dev/kfd")
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _wrap_states() -> bool:
    """Wrap the constructors of Accelerate's state. Return True if the classes exist already.

    `PartialState()` does not read the variable, and only Accelerate's state shows whether a rank will train alone.
    """
    state: Any = sys.modules.get("accelerate.state")
    if not hasattr(state, "PartialState") or not hasattr(state, "AcceleratorState"):
        return False
    _wrap_partial_state(state.PartialState)
    _wrap_accelerator_state(state.AcceleratorState)
    return True


def _wrap_partial_state(partial_state: Any) -> None:
    original = partial_state.__init__

    @functools.wraps(original)
    def init(self: Any, cpu: bool = False, *args: Any, **kwargs: Any) -> None:
        if self.initialized:
            original(self, cpu, *args, **kwargs)
            return
        tell_accelerate()
        original(self, cpu or _our_value_stands(os.environ), *args, **kwargs)
        _warn_if_alone(self)

    partial_state.__init__ = init


def _wrap_accelerator_state(accelerator_state: Any) -> None:
    original = accelerator_state.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        tell_accelerate()  # hvd.init() may have set RANK since, or Accelerator() may have got DeepSpeed's plugin
        original(self, *args, **kwargs)

    accelerator_state.__init__ = init


def _warn_if_alone(state: Any) -> None:
    size = torchrun_variables.job_size(os.environ)
    if size > 1 and getattr(state, "num_processes", None) == 1:
        from horovod.common import user_warnings

        user_warnings.warn_once(ALONE.format(size=size))
