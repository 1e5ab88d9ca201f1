# SPDX-License-Identifier: Apache-2.0
"""The tests of Accelerate are for environments that have it."""

import importlib.util

if importlib.util.find_spec("accelerate") is None:
    collect_ignore = ["test_accelerate.py"]
