# SPDX-License-Identifier: Apache-2.0
"""An import path of Horovod's launcher: what is not available here raises on use."""

from horovod.common.not_yet import NotYet

DISCOVER_HOSTS_FREQUENCY_SECS = 1.0
ELASTIC_TIMEOUT_SECS = 600


class ElasticDriver(NotYet): ...


class Results(NotYet): ...


class ResultsRecorder(NotYet): ...
