# SPDX-License-Identifier: Apache-2.0
"""The library of XLA handlers (libhvd_xla), for every framework that compiles with XLA."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from horovod.common.context import default_context
from horovod.common.context_numbers import number_of
from horovod.common.process_set import ProcessSet

TARGET = "hvd_collective"
PATH = Path(__file__).parents[1] / "libhvd_xla.so"


class XlaLibrary:
    """The loaded library. As an Observer of the context, it learns which process sets are registered."""

    def __init__(self) -> None:
        self.handlers = library = ctypes.CDLL(str(PATH))
        library.hvd_xla_bind.argtypes = [ctypes.c_int64, ctypes.c_void_p, *[ctypes.c_int32] * 4]
        library.hvd_xla_bind.restype = None
        library.hvd_xla_unbind.argtypes = [ctypes.c_int64]
        library.hvd_xla_unbind.restype = None
        library.hvd_xla_lost_rank.restype = ctypes.c_int32
        library.hvd_xla_register.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        library.hvd_xla_register.restype = ctypes.c_int32
        default_context.observe(self)

    def lost_rank(self) -> int | None:
        rank = int(self.handlers.hvd_xla_lost_rank())
        return rank if rank >= 0 else None

    def register(self, api: int) -> bool:
        """Register the handlers with the XLA that has this table of functions (XLA_FFI_Api*). False if XLA refused."""
        return bool(self.handlers.hvd_xla_register(api, TARGET.encode()))

    def bound(self, process_set: ProcessSet) -> None:
        member = process_set.membership
        if member is not None and member.index >= 0:
            rank = default_context.topology.rank
            self.handlers.hvd_xla_bind(
                number_of(process_set), member.world.address, member.id, member.size, member.index, rank
            )

    def unbound(self, process_set: ProcessSet) -> None:
        self.handlers.hvd_xla_unbind(number_of(process_set))


@functools.cache
def load() -> XlaLibrary:
    return XlaLibrary()
