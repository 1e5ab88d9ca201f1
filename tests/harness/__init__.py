# SPDX-License-Identifier: Apache-2.0
"""Runs test bodies on all ranks of live worlds. See `worlds` for the worlds and the decorators."""
