# SPDX-License-Identifier: Apache-2.0
"""These tests need TensorFlow, which has environments of its own: `make test-tensorflow`. Elsewhere nothing is here."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("tensorflow") else ["test_*.py"]
