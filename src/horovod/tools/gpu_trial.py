# SPDX-License-Identifier: Apache-2.0
"""GPU checks of `hvd doctor`, through the CUDA driver alone, without a framework.

Two ranks share the first GPU and add up tensors there: once through GPU memory that both can access (CUDA IPC), once
through pinned host memory.
"""

from __future__ import annotations

import ctypes
import itertools
import statistics
import time
from typing import Any

from horovod.common import nccl_library
from horovod.common.util import env
from horovod.launcher.options import JobOptions
from horovod.machine.findings import Finding
from horovod.tools import speed, trial

SMALL, LARGE = 4 << 10, 16 << 20
_CALLS, _WARM_UP = 15, 3
_FLOAT32, _SUM = "float32", 1
_NO_IPC = (
    "Ranks of this host exchange CUDA tensors through host memory instead. In containers, start all of them with "
    "--ipc=host and in one PID namespace; MIG instances and sandboxed kernels (gVisor) may not share memory at all."
)


_NO_MPS = (
    "For ranks that share a GPU, start NVIDIA's service for that, MPS (nvidia-cuda-mps-control -d), before they start: "
    "their work then runs side by side, and collectives are several times faster."
)
_MPS_ENABLED = 133  # attribute number in the driver; older drivers do not know it


class Driver:
    """Functions of the CUDA driver. Raise OSError or RuntimeError if there is no working driver."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)

    def _call(self, name: str, *arguments: Any) -> None:
        if result := getattr(self._library, name)(*arguments):
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(result, ctypes.byref(text))
            raise RuntimeError(f"{name} failed: {(text.value or b'unknown error').decode()}")

    def _number(self, name: str, *arguments: Any) -> int:
        value = ctypes.c_int()
        self._call(name, ctypes.byref(value), *arguments)
        return value.value

    @property
    def version(self) -> str:
        """Return the newest CUDA version that the driver supports."""
        number = self._number("cuDriverGetVersion")
        return f"{number // 1000}.{number % 1000 // 10}"

    @property
    def devices(self) -> int:
        return self._number("cuDeviceGetCount")

    @property
    def runs_together(self) -> bool:
        """Return True if processes that share the first GPU can run at once (MPS)."""
        try:
            return bool(self._number("cuDeviceGetAttribute", _MPS_ENABLED, 0))
        except RuntimeError:
            return False

    def reaches(self, one: int, other: int) -> bool:
        return bool(self._number("cuDeviceCanAccessPeer", one, other))

    def use(self, device: int) -> None:
        """Make this thread use a GPU for its allocations."""
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxPushCurrent_v2", context)

    def allocate(self, nbytes: int) -> int:
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        return address.value

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def synchronize(self) -> None:
        self._call("cuStreamSynchronize", ctypes.c_void_p(0))


def findings(limit_s: float) -> list[Finding]:
    """Return the findings about GPUs, or an empty list without a driver. Never raises."""
    try:
        driver = Driver()
        devices = driver.devices
        version = driver.version
    except OSError:
        return []
    except RuntimeError as error:
        return [Finding("driver", f"does not work: {error}", "Ask nvidia-smi, and whoever installed the driver.")]
    if devices == 0:
        return [Finding("driver", f"CUDA {version}, no GPU")]
    found = [Finding("driver", f"CUDA {version}, {devices} GPU{'s' * (devices > 1)}")]
    if devices > 1:
        found.append(_peers(driver, devices))
    together = driver.runs_together
    shared = "processes run side by side on a GPU (MPS)" if together else "processes take turns on a GPU (no MPS)"
    found.append(Finding("sharing", shared, "" if together else _NO_MPS))
    number = nccl_library.version()
    found.append(Finding("NCCL", nccl_library.spoken(number) if number else "none found"))
    return [*found, _way("memory of the GPU", "ipc", limit_s), _way("host memory", "staged", limit_s)]


def _peers(driver: Driver, devices: int) -> Finding:
    pairs = list(itertools.permutations(range(devices), 2))
    reached = sum(driver.reaches(one, other) for one, other in pairs)
    return Finding("peer access", f"{reached} of {len(pairs)} pairs of GPUs")


def _way(name: str, transport: str, limit_s: float) -> Finding:
    try:
        with env(HOROVOD_GPU_TRANSPORT=transport):
            done = trial.run(measure, ranks=2, transport="shm", limit_s=limit_s, where=JobOptions(hosts="localhost:2"))
    except (trial.TrialFailed, ValueError, OSError) as error:
        lines = str(error).strip().splitlines() or [""]
        advice = trial.advice_on(str(error)) or (_NO_IPC if transport == "ipc" else "")
        return Finding(name, "does not work: " + lines[-1].strip()[:300], advice)
    small, large = (max(times) for times in zip(*done.results, strict=True))
    text = f"works: {speed.time_text(small)} for {speed.size_text(SMALL)}, {speed.time_text(large)}"
    return Finding(name, f"{text} for {speed.size_text(LARGE)}, two ranks on one GPU")


def measure() -> list[float]:
    """Return the median seconds of an allreduce of each size on the first GPU. Call on every rank."""
    import horovod.numpy as hvd
    from horovod._engine import EngineCall, TensorLocation
    from horovod.common.calls import ALLREDUCE
    from horovod.common.context import default_context
    from horovod.common.dtypes import ID_BY_NAME
    from horovod.common.process_sets import global_process_set

    driver = Driver()
    driver.use(0)
    member = default_context.membership_of(global_process_set)
    medians = []
    for size in (SMALL, LARGE):
        memory = driver.allocate(size)
        times = []
        for _ in range(_WARM_UP + _CALLS):
            hvd.barrier()
            began = time.perf_counter()
            tensor = TensorLocation(ID_BY_NAME[_FLOAT32], (size // 4,), memory, memory, device=0)
            handle = member.world.submit(member.id, f"gpu.{size}", EngineCall(ALLREDUCE, _SUM), tensor)
            member.world.finish(handle)
            member.world.let_wait(0, 0)
            driver.synchronize()
            times.append(time.perf_counter() - began)
        driver.free(memory)
        medians.append(statistics.median(times[_WARM_UP:]))
    return medians
