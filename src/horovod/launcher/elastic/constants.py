# SPDX-License-Identifier: Apache-2.0
"""Message texts of elastic jobs that user programs import."""

RESET_LIMIT_EXCEEDED_MESSAGE = "the workers had to meet again more often than the reset limit of {} allows"
