# SPDX-License-Identifier: Apache-2.0
"""Pretend that rank 1 has another release installed, so that hvd.init() must fail on all ranks."""

import os

from faultkit.reports import report

import horovod
import horovod.numpy as hvd

if os.environ["HOROVOD_RANK"] == "1":
    horovod.__version__ = "99.0"
try:
    hvd.init()
except ValueError as error:
    report("refused", text=str(error))
    raise
