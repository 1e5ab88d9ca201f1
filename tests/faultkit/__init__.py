# SPDX-License-Identifier: Apache-2.0
"""What fault tests share: jobs of real processes, their reports, strangers at open ports, refused system calls."""
