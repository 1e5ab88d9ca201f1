# SPDX-License-Identifier: Apache-2.0
"""Reduction of gradients between backward() and step(); `reducer` combines `rounds` (agreement) and `flights`."""
