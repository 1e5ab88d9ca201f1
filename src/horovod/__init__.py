# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training: `import horovod.numpy as hvd` (or torch, tensorflow, keras, jax, mxnet).

Importing this module loads no framework, no NumPy and no engine.
"""

from typing import TYPE_CHECKING, Any

from horovod.common.version import VERSION as __version__  # noqa: N811 - the usual name

if TYPE_CHECKING:
    from horovod.launcher.run_function import run as run

__all__ = ["__version__", "run"]


def __getattr__(name: str) -> Any:
    if name == "run":
        from horovod.launcher.run_function import run

        return run
    raise AttributeError(f"module 'horovod' has no attribute {name!r}")
