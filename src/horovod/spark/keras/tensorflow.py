# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.common.not_yet import function

load_tf_keras_optimizer = function(__name__, "load_tf_keras_optimizer")
save_tf_keras_optimizer = function(__name__, "save_tf_keras_optimizer")
