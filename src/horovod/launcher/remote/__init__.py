# SPDX-License-Identifier: Apache-2.0
"""Workers on other hosts: starting agents there, the protocol with them, and the hosts' addresses."""
