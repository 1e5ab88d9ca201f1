# SPDX-License-Identifier: Apache-2.0
"""These tests need JAX, which has environments of its own: `make test-jax`. Elsewhere they are not collected."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("jax") else ["test_*.py"]
