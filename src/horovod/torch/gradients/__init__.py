# SPDX-License-Identifier: Apache-2.0
"""Gradients on their way from backward() to step(): the reducer, over rounds (what ranks agree on) and flights."""
