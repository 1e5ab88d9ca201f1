# SPDX-License-Identifier: Apache-2.0
"""Registration of the torch.distributed backend `horovod`.

torch 2.5 and later calls `register` when it is imported (entry point group torch.backends), unless
TORCH_DEVICE_BACKEND_AUTOLOAD=0. So this module imports as little as possible.
"""

from __future__ import annotations

import importlib
import os
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlparse

from horovod import accelerate_on_cpu, library_warnings
from horovod.common import place_variables, torchrun_variables
from horovod.torch_backend_names import DEVICES as DEVICES
from horovod.torch_backend_names import GROUP_ALONE as GROUP_ALONE
from horovod.torch_backend_names import NAME as NAME


def register() -> None:
    """Register the backend with torch, and watch for libraries that would train each rank alone.

    Do nothing at a second call, or if torch has no distributed package.
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
    """Let init_process_group() use horovodrun's rendezvous, where rank 0 serves a store on a free port."""
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
    """Return True if a group of all the launcher's ranks is requested, each with its own rank.

    That is the case if neither the user nor a torchrun inside the job has set anything else.
    """
    asked = _asked(url)
    environ = place_variables.known(os.environ)
    place = {"rank": environ.get("HOROVOD_RANK"), "world_size": environ.get("HOROVOD_SIZE")}
    as_launched = all(asked.get(name, value) in (value, "-1") for name, value in place.items())
    return as_launched and ("MASTER_ADDR" not in os.environ or torchrun_variables.place_is_ours(os.environ))


def _asked(url: str) -> dict[str, str]:
    """Return rank and world size, as far as the caller of init_process_group() has passed them."""
    return {name: values[-1] for name, values in parse_qs(urlparse(url).query).items()}


def _warn_of_group_alone(url: str) -> None:
    size = place_variables.known(os.environ).get("HOROVOD_SIZE", "1")
    asked = _asked(url).get("world_size", os.environ.get("WORLD_SIZE"))
    if asked == "1" and size.isdecimal() and int(size) > 1 and not torchrun_variables.is_torchruns(os.environ):
        from horovod.common import user_warnings

        user_warnings.warn_once(GROUP_ALONE.format(size=size))
