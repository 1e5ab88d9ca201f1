# SPDX-License-Identifier: Apache-2.0
"""Jobs whose workers come and go."""
