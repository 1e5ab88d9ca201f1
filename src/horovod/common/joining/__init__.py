# SPDX-License-Identifier: Apache-2.0
"""How a process joins the other ranks and a world comes to life, whoever started them."""
