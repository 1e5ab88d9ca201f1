# SPDX-License-Identifier: Apache-2.0
"""Docstrings of the public API, kept once for all frameworks; scripts/docstrings writes them into the sources."""
