# SPDX-License-Identifier: Apache-2.0
"""Start, supervision and end of a job's processes."""
