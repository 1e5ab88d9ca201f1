# SPDX-License-Identifier: Apache-2.0
"""The `hvd` command, which examines machines and jobs. Workers never import it."""
