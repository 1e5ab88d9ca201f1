# SPDX-License-Identifier: Apache-2.0
"""Output of the workers: reading, tagging and writing it."""
