# SPDX-License-Identifier: Apache-2.0
"""Starting jobs: `horovodrun` (horovod.runner.launch) and, from Python, `horovod.run`."""

from horovod.common.lazily import lazily
from horovod.launcher.run_function import run

__all__ = ["run"]

__getattr__ = lazily(__name__, {"_HorovodArgs": "horovod.launcher.arguments:HorovodArgs"})
