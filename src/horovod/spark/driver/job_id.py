# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.common.not_yet import function, value

JOB_ID = value(__name__, "JOB_ID")
next_job_id = function(__name__, "next_job_id")
