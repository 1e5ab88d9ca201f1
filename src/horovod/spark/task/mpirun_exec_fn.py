# SPDX-License-Identifier: Apache-2.0
"""Spark, under an import path of Horovod's: not available yet."""

from horovod.common.not_yet import function

main = function(__name__, "main")

if __name__ == "__main__":
    main()
