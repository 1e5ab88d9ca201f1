# SPDX-License-Identifier: Apache-2.0
"""Setup of a world: how a process finds and connects to the other ranks, for each way to start them."""
