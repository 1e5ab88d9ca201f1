# SPDX-License-Identifier: Apache-2.0
"""Where and how the processes of a job start, run and end."""
