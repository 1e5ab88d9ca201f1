# SPDX-License-Identifier: Apache-2.0
"""The `hvd` command: looking at machines and jobs. Never imported by workers."""
