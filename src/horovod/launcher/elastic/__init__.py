# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs, whose workers come and go."""
