# SPDX-License-Identifier: Apache-2.0
"""Functions and classes of Horovod's launcher that programs import. This package's launcher hardly uses them."""
