# SPDX-License-Identifier: Apache-2.0
"""Code that all framework APIs share: settings, topology, context, operations, process sets, objects, exceptions."""
