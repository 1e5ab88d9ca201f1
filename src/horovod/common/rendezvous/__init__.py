# SPDX-License-Identifier: Apache-2.0
"""The rendezvous, where ranks of a job meet and exchange small values: protocol, rules of meeting, server, client."""
