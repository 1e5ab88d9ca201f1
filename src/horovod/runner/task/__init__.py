# SPDX-License-Identifier: Apache-2.0
"""Old import paths, kept for programs that use them."""
