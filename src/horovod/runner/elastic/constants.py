# SPDX-License-Identifier: Apache-2.0
"""Texts of elastic jobs, under their old import path."""

RESET_LIMIT_EXCEEDED_MESSAGE = "Reset count {} has exceeded reset limit {}: the job is ended."
