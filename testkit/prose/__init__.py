# SPDX-License-Identifier: Apache-2.0
"""Check of the wording of comments, docstrings and names, as far as a program can judge it."""
