# SPDX-License-Identifier: Apache-2.0
"""Pretend that rank 1 has another release installed, so that hvd.init() must fail on all ranks."""

import os

from faultkit.reports import report

import horovod.numpy as hvd
from horovod.common import version

if os.environ["HOROVOD_RANK"] == "1":
    version.VERSION = "99.0"
try:
    hvd.init()
except ValueError as error:
    report("refused", text=str(error))
    raise
