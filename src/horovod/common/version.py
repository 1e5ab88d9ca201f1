# SPDX-License-Identifier: Apache-2.0
"""Version of this package."""

VERSION = "1.0.0.dev0"
