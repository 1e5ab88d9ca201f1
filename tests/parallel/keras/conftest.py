# SPDX-License-Identifier: Apache-2.0
"""These tests need Keras, which has environments of its own: `make test-keras`. Elsewhere they are not collected."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("keras") else ["test_*.py"]
