# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.common.not_yet import function

gloo_run = function(__name__, "gloo_run")
gloo_run_elastic = function(__name__, "gloo_run_elastic")
