# SPDX-License-Identifier: Apache-2.0
"""Checks of this machine, for `hvd doctor` and for the launcher's agents on other hosts."""
