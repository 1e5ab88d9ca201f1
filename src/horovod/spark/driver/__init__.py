# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this package of Horovod's Spark API, which is not available yet."""
