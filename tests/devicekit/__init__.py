# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for libraries that need a GPU."""
