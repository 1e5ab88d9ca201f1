# SPDX-License-Identifier: Apache-2.0
"""What the workers print: read, tagged, written."""
