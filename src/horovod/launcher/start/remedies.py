# SPDX-License-Identifier: Apache-2.0
"""Remedies for the failure of a worker: the one that fits the cause, if any.

A pattern must not match errors with another cause, because wrong advice is worse than none.
"""

from __future__ import annotations

import re

_ENDS_BY_SIGNAL = (
    (
        r"killed by signal 9\b",
        "SIGKILL without a message is often the kernel's when memory runs out: look into its log (dmesg), use a "
        "smaller batch or fewer ranks on the host",
    ),
    (r"killed by signal (10|12)\b", "install a handler for this signal in the script"),
    (r"killed by signal 24\b", "the limit of CPU time is used up: raise it (ulimit -t)"),
    (r"killed by signal 25\b", "a file has reached the limit of its size: raise it (ulimit -f)"),
    (
        r"Fatal Python error: (init|pyinit|config|preconfig|Py_Initialize)",
        "Python itself could not start: check PYTHONHOME and PYTHONPATH on the host of this rank",
    ),
    (
        r"Fatal Python error: Illegal instruction|killed by signal 4\b",
        "a library is made for another processor: install one that is built for this host's",
    ),
    (
        r"Fatal Python error: Bus error|killed by signal 7\b",
        "often a full /dev/shm (df -h /dev/shm; containers: --shm-size=1g), or a mapped file that was cut meanwhile",
    ),
    (
        r"Fatal Python error: (Segmentation fault|Floating)|killed by signal (8|11)\b",
        "native code crashed: the frames above, if any, are where Python was",
    ),
    (r"Fatal Python error|killed by signal 6\b", "the process aborted itself: its last lines, if any, say why"),
)

_OF_HOROVOD = (
    (
        r"Rank \d+ finished while .* still call",
        "let all ranks make this call, outside of conditions such as `if hvd.rank() == 0`; if ranks only have "
        "different numbers of batches, use drop_last=True or hvd.join()",
    ),
    (
        r"rank \d+ \(on host .*\) called shutdown or exited",
        "let all ranks reach hvd.shutdown(), or the end of the script, after the same operations",
    ),
    (
        r"rank \d+ (is lost|raised )",
        "look for the rank that this error names: it failed first, and this rank only noticed",
    ),
)

_OF_GPUS = (
    (
        r"_cuda_setDevice|Torch not compiled with CUDA enabled",
        "this PyTorch is built for CPUs alone: install one for CUDA, or use a device only if torch.cuda.is_available()",
    ),
    (
        r"No CUDA GPUs are available|no CUDA-capable device",
        "this rank sees no GPU: look at nvidia-smi and CUDA_VISIBLE_DEVICES on its host (containers: --gpus all), or "
        "train on the CPU",
    ),
    (
        r"Found no NVIDIA driver|CUDA driver version is insufficient",
        "install NVIDIA's driver on the host of this rank, or a newer one (containers: --gpus all), or train on CPUs",
    ),
    (
        r"invalid device ordinal",
        "this rank asked for a GPU that it does not see: use hvd.local_rank(), and not hvd.rank(); on a host with "
        "fewer GPUs than ranks, hvd.local_rank() % torch.cuda.device_count()",
    ),
    (
        r"CUDA(?: error:)? out of memory|CUDA_ERROR_OUT_OF_MEMORY",
        "use a smaller batch; ranks that use the same GPU share its memory: pin each to GPU hvd.local_rank()",
    ),
)

_OF_MEMORY_AND_LIMITS = (
    (
        r"OutOfMemoryError|out of memory|MemoryError|std::bad_alloc|Cannot allocate memory",
        "use a smaller batch, or fewer ranks on the host",
    ),
    (r"No space left on device", "free space there, or write elsewhere (df -h; /dev/shm in containers: --shm-size=1g)"),
    (r"Too many open files in system", "raise the limit of open files of the whole system (sysctl fs.file-max)"),
    (r"Too many open files", "raise the limit of open files (ulimit -n)"),
    (
        r"can't start new thread|pthread_create failed|([Ff]ork|[Tt]hread).*Resource temporarily unavailable",
        "the limit of processes and threads is reached: raise it (ulimit -u; containers: --pids-limit), set "
        "OMP_NUM_THREADS=1, or start fewer ranks",
    ),
)

_OF_FILES_AND_MODULES = (
    (
        r"use -\[v\]S to pass options in shebang lines",
        r"the script's first line ends in a carriage return (as on Windows) or a blank: remove it (sed -i 's/\r$//')",
    ),
    (
        r"ModuleNotFoundError",
        "install it for the Python that runs the workers, on every host; a module of your own must be beside the "
        "script or in PYTHONPATH",
    ),
    (
        r"ImportError: .*cannot open shared object file",
        "install this library on every host, where the loader looks for it (LD_LIBRARY_PATH)",
    ),
    (
        r"ImportError: cannot import name (?!.*partially initialized module)",
        "the installed version has no such name, or a file of yours has the name of the module: the error says which "
        "file was read",
    ),
    (
        r"[Uu]nable to lock file",
        "another process has this file open: open it only for reading, or give each rank a file of its own",
    ),
    (
        r"FileNotFoundError",
        "check that the path exists on the host of this rank; if another rank makes it, wait for that (hvd.barrier())",
    ),
)

# The first pattern found in how the worker ended, or in the line of its error, determines the remedy.
_REMEDIES = (*_ENDS_BY_SIGNAL, *_OF_HOROVOD, *_OF_GPUS, *_OF_MEMORY_AND_LIMITS, *_OF_FILES_AND_MODULES)


def remedy_for(how: str, error: str) -> str | None:
    """Return the remedy for a failure, or None if none is known.

    Args:
        how: How the worker ended, for example "killed by signal 9 (SIGKILL)".
        error: The line of its stderr that names the error.
    """
    text = f"{how}\n{error}"
    return next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, text)), None)
