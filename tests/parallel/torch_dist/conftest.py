# SPDX-License-Identifier: Apache-2.0
"""Collect these tests only where torch is installed."""

import importlib.util

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
