# SPDX-License-Identifier: Apache-2.0
"""Services that jobs talk to beside the rendezvous."""
