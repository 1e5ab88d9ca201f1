# SPDX-License-Identifier: Apache-2.0
"""Spark, under an import path of Horovod's: not available yet."""

from horovod.common.not_yet import function

gloo_run = function(__name__, "gloo_run")
gloo_run_elastic = function(__name__, "gloo_run_elastic")
