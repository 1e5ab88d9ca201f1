# SPDX-License-Identifier: Apache-2.0
"""Spark, under import paths of Horovod's: not available yet."""
