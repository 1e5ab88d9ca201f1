# SPDX-License-Identifier: Apache-2.0
"""Registers the torch.distributed backend `horovod`. torch itself calls `register` at its import (entry point group
torch.backends, torch 2.5 and later; TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns that off), so nothing else is imported here.
"""

from __future__ import annotations

import importlib
import os
from datetime import timedelta
from typing import Any

NAME = "horovod"


def register() -> None:
    """Make the name known to torch. Harmless the second time, and where torch has no distributed package."""
    import torch.distributed as dist

    if not dist.is_available() or NAME.upper() in dist.Backend._plugins:
        return
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
    _offer_launcher()


def _create(options: Any, group_options: Any) -> Any:
    from horovod.torch.distributed import backend

    return backend.create(options)


def _offer_launcher() -> None:
    """Let init_process_group() work under horovodrun, which sets no MASTER_ADDR: torch alone would refuse there."""
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    handlers: dict[str, Any] = getattr(rendezvous, "_rendezvous_handlers", {})
    torchs_own = handlers.get("env")
    if torchs_own is None:
        return

    def meet(url: str, timeout: timedelta = timedelta(minutes=30), **options: Any) -> Any:
        if os.environ.get("MASTER_ADDR") or not os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR"):
            return torchs_own(url, timeout=timeout, **options)
        from horovod.torch.distributed import launcher

        return launcher.rendezvous(timeout)

    handlers["env"] = meet
