# SPDX-License-Identifier: Apache-2.0
"""Collect the tests of Accelerate only where it is installed."""

import importlib.util

if importlib.util.find_spec("accelerate") is None:
    collect_ignore = ["test_accelerate.py"]
