# SPDX-License-Identifier: Apache-2.0
"""Ray, under an import path of Horovod's: not available yet."""

from horovod.common.not_yet import function

warning_raised = False


configure = function(__name__, "configure")
log = function(__name__, "log")
