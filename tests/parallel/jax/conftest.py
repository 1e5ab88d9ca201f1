# SPDX-License-Identifier: Apache-2.0
"""Collect these tests only where JAX is installed; `make test-jax` makes such an environment."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("jax") else ["test_*.py"]
