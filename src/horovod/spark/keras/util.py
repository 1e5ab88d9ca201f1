# SPDX-License-Identifier: Apache-2.0
"""Spark, under an import path of Horovod's: not available yet."""

from horovod.common.not_yet import NotYet, value


class TFKerasUtil(NotYet): ...


TF_KERAS = value(__name__, "TF_KERAS")
