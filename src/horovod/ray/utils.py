# SPDX-License-Identifier: Apache-2.0
"""Ray, under an import path of Horovod's: not available yet."""

from horovod.common.not_yet import function
from horovod.runner.driver import driver_service as driver_service
from horovod.runner.util import network as network

detect_nics = function(__name__, "detect_nics")
map_blocking = function(__name__, "map_blocking")
nics_to_env_var = function(__name__, "nics_to_env_var")
