# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: worlds of ranks that take orders, timing, statistics, tables and plots."""
