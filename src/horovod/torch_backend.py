# SPDX-License-Identifier: Apache-2.0
"""Registers the torch.distributed backend `horovod`. torch itself calls `register` at its import (entry point group
torch.backends, torch 2.5 and later; TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns that off), so nothing else is imported here.
"""

from __future__ import annotations

import importlib
import os
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlparse

from horovod import accelerate_on_cpu, library_warnings
from horovod.common import place_variables, torchrun_variables

NAME = "horovod"
DEVICES = ["cpu", "cuda"]
GROUP_ALONE = (
    "torch.distributed has a group of 1 process, but this job has {size} ranks: what uses that group (DDP, Accelerate, "
    "Lightning, ...) trains each rank alone. Call torch.distributed.init_process_group() without rank and world_size, "
    "and leave RANK, WORLD_SIZE and LOCAL_RANK to the launcher."
)


def register() -> None:
    """Make the name known to torch, and watch for libraries that would train each rank alone. Harmless the second time,
    and where torch has no distributed package.
    """
    import torch.distributed as dist

    if not dist.is_available() or NAME.upper() in dist.Backend._plugins:
        return
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=DEVICES)
    _offer_launcher()
    accelerate_on_cpu.watch()
    library_warnings.watch()


def _create(options: Any, group_options: Any) -> Any:
    from horovod.torch.distributed import backend

    return backend.create(options)


def _offer_launcher() -> None:
    """Let init_process_group() meet at horovodrun, where rank 0 serves a store on a port that it has at that moment."""
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    handlers: dict[str, Any] = getattr(rendezvous, "_rendezvous_handlers", {})
    torchs_own = handlers.get("env")
    if torchs_own is None:
        return

    def meet(url: str, timeout: timedelta = timedelta(minutes=30), **options: Any) -> Any:
        if not os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR") or not _is_launchers_world(url):
            _warn_of_group_alone(url)
            return torchs_own(url, timeout=timeout, **options)
        from horovod.torch.distributed import launcher

        return launcher.rendezvous(timeout)

    handlers["env"] = meet


def _is_launchers_world(url: str) -> bool:
    """Whether a group is asked for of all ranks of the launcher, each with its own number: neither the user nor a
    torchrun inside the job has said anything else.
    """
    asked = _asked(url)
    environ = place_variables.known(os.environ)
    place = {"rank": environ.get("HOROVOD_RANK"), "world_size": environ.get("HOROVOD_SIZE")}
    as_launched = all(asked.get(name, value) in (value, "-1") for name, value in place.items())
    return as_launched and ("MASTER_ADDR" not in os.environ or torchrun_variables.place_is_ours(os.environ))


def _asked(url: str) -> dict[str, str]:
    """Rank and number of ranks, as far as the caller of init_process_group() has passed them."""
    return {name: values[-1] for name, values in parse_qs(urlparse(url).query).items()}


def _warn_of_group_alone(url: str) -> None:
    size = place_variables.known(os.environ).get("HOROVOD_SIZE", "1")
    asked = _asked(url).get("world_size", os.environ.get("WORLD_SIZE"))
    if asked == "1" and size.isdecimal() and int(size) > 1 and not torchrun_variables.is_torchruns(os.environ):
        from horovod.common import user_warnings

        user_warnings.warn_once(GROUP_ALONE.format(size=size))
