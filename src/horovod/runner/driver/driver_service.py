# SPDX-License-Identifier: Apache-2.0
"""An import path of Horovod's launcher: what is not available here raises on use."""

from horovod.common.not_yet import NotYet, function


class HorovodRunDriverClient(NotYet): ...


class HorovodRunDriverService(NotYet): ...


get_common_interfaces = function(__name__, "get_common_interfaces")
get_local_interfaces = function(__name__, "get_local_interfaces")
