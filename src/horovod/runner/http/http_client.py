# SPDX-License-Identifier: Apache-2.0
"""An import path of Horovod's launcher: what is not available here raises on use."""

from horovod.common.not_yet import function

put_data_into_kvstore = function(__name__, "put_data_into_kvstore")
read_data_from_kvstore = function(__name__, "read_data_from_kvstore")
