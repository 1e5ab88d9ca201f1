# SPDX-License-Identifier: Apache-2.0
"""Spark, under an import path of Horovod's: not available yet."""

from horovod.common.not_yet import function

load_tf_keras_optimizer = function(__name__, "load_tf_keras_optimizer")
save_tf_keras_optimizer = function(__name__, "save_tf_keras_optimizer")
