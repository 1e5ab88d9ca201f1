# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.common.lazily import lazily
from horovod.common.not_yet import value
from horovod.launcher.compat import secret as secret
from horovod.launcher.compat.compute_service import ComputeService as ComputeService
from horovod.spark.runner import run as run

compute = value(__name__, "compute")
compute_config = value(__name__, "compute_config")
key = value(__name__, "key")
parsed_args = value(__name__, "parsed_args")
parser = value(__name__, "parser")
ret = value(__name__, "ret")
spark = value(__name__, "spark")
spark_context = value(__name__, "spark_context")
workers = value(__name__, "workers")
workers_per_dispatcher = value(__name__, "workers_per_dispatcher")

__getattr__ = lazily(
    __name__,
    {
        "TfDataServiceConfig": "horovod.tensorflow.data.compute_service:TfDataServiceConfig",
        "compute_worker_fn": "horovod.tensorflow.data.compute_service:compute_worker_fn",
    },
)

if __name__ == "__main__":
    run()
