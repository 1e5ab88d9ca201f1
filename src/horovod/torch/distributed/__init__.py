# SPDX-License-Identifier: Apache-2.0
"""The torch.distributed backend named `horovod`; importing this package registers it."""

from horovod.torch.distributed.errors import ProcessGroupError, ProcessGroupMismatchError
from horovod.torch.distributed.process_group import HorovodProcessGroup
from horovod.torch_backend import register

register()

__all__ = ["HorovodProcessGroup", "ProcessGroupError", "ProcessGroupMismatchError"]
