# SPDX-License-Identifier: Apache-2.0
"""Local SGD and DiLoCo: workers train alone and exchange weights in rounds. Framework APIs implement `Weights`."""

from horovod.common.local_sgd.core import Core, Weights
from horovod.common.local_sgd.options import AVERAGE, Options, OuterSgd, outer_of

__all__ = ["AVERAGE", "Core", "Options", "OuterSgd", "Weights", "outer_of"]
