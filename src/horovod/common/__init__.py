# SPDX-License-Identifier: Apache-2.0
"""What all doors share, written once: settings, topology, context, operations, process sets, objects, exceptions."""
