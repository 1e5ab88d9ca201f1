# SPDX-License-Identifier: Apache-2.0
"""Gradients compressed by a method with arguments, inside jit and out. What is kept lives in the optimizer's state."""
