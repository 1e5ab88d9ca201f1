# SPDX-License-Identifier: Apache-2.0
"""Collect these tests only where TensorFlow is installed; `make test-tensorflow` makes such an environment."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("tensorflow") else ["test_*.py"]
