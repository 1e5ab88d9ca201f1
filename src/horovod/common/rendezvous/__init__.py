# SPDX-License-Identifier: Apache-2.0
"""The rendezvous, where ranks of a job meet and small values travel: protocol, meeting (the rules), server, client."""
