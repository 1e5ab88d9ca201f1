# SPDX-License-Identifier: Apache-2.0
"""Execution of test bodies on all ranks of live worlds. See `worlds` for the worlds and the decorators."""
