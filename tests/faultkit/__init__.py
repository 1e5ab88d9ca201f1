# SPDX-License-Identifier: Apache-2.0
"""Helpers of fault tests: jobs of real processes, their reports, hostile clients, refused system calls."""
