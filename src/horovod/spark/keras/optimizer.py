# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.common.not_yet import function

deserialize_bare_keras_optimizer = function(__name__, "deserialize_bare_keras_optimizer")
deserialize_tf_keras_optimizer = function(__name__, "deserialize_tf_keras_optimizer")
is_string = function(__name__, "is_string")
serialize_bare_keras_optimizer = function(__name__, "serialize_bare_keras_optimizer")
serialize_tf_keras_optimizer = function(__name__, "serialize_tf_keras_optimizer")
