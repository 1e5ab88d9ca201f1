# SPDX-License-Identifier: Apache-2.0
"""Compression of gradients by a method with arguments, inside jit and outside; its state is in the optimizer's."""
