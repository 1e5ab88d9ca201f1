# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.common.not_yet import function

deserialize_fn = function(__name__, "deserialize_fn")
is_module_available = function(__name__, "is_module_available")
is_module_available_fn = function(__name__, "is_module_available_fn")
save_into_bio = function(__name__, "save_into_bio")
save_into_bio_fn = function(__name__, "save_into_bio_fn")
serialize_fn = function(__name__, "serialize_fn")
