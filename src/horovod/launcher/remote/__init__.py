# SPDX-License-Identifier: Apache-2.0
"""Workers on other hosts: how an agent is started there, what is said to it, and which addresses the hosts use."""
