# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.common.not_yet import function

main = function(__name__, "main")

if __name__ == "__main__":
    main()
