# SPDX-License-Identifier: Apache-2.0
"""Runs a program of a job as if it had been started itself, under the rules for warnings."""

import runpy
import sys

import warning_rules

warning_rules.apply()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
