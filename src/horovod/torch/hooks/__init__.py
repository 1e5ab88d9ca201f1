# SPDX-License-Identifier: Apache-2.0
"""Communication hooks: the user's code decides how the gradients of an optimizer travel between ranks."""
