# SPDX-License-Identifier: Apache-2.0
"""These tests are for those who have torch."""

import importlib.util

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
