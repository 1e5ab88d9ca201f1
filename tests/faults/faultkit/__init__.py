# SPDX-License-Identifier: Apache-2.0
"""What fault tests share: jobs of real processes, their reports, hosts made of network namespaces, refused syscalls."""
