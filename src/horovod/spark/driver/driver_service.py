# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.common.not_yet import NotYet


class CodeRequest(NotYet): ...


class CodeResponse(NotYet): ...


class SetLocalRankToRankRequest(NotYet): ...


class SetLocalRankToRankResponse(NotYet): ...


class SparkDriverClient(NotYet): ...


class SparkDriverService(NotYet): ...


class TaskHostHashIndicesRequest(NotYet): ...


class TaskHostHashIndicesResponse(NotYet): ...


class TaskIndexByRankRequest(NotYet): ...


class TaskIndexByRankResponse(NotYet): ...


class WaitForTaskShutdownRequest(NotYet): ...
