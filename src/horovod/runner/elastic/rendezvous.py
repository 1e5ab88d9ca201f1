# SPDX-License-Identifier: Apache-2.0
"""An import path of Horovod's launcher: what is not available here raises on use."""

from horovod.common.not_yet import function

GET_RANK_AND_SIZE = "rank_and_size"
PUT_WORKER_ADDRESSES = "worker_addresses"


create_rendezvous_handler = function(__name__, "create_rendezvous_handler")
